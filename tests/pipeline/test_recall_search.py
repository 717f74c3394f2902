import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.originals.search import FoundPiece, MentionedFile, OriginalText, Scope, SearchFailed
from gateway.pipeline import recall_search
from gateway.pipeline.recall_search import RecallSearch, find_scopes
from gateway.reporting.metrics import Metrics
from gateway.store.keys import make_tag
from tests.builders.chat import make_pivot, make_plan
from tests.builders.compaction import receive, turn_of

_RECEIVED = receive(3)
_TURN = turn_of(_RECEIVED)
_PIVOT = replace(make_pivot(_RECEIVED.conversation, 3), conversation="elsewhere")
_PLAN = make_plan(_PIVOT)
_PIECE = FoundPiece(
    conversation="c", position=2, role="tool", text="the secret path", start=0, end=15, time_seconds=1.0
)


class ToySearch:
    """asked: tag, scopes, query and room of each search."""

    def __init__(self, found: list[FoundPiece] | Exception | None) -> None:
        self._found = found
        self.asked: list[tuple[str, Sequence[Scope], str, int]] = []

    async def search(
        self,
        tag: str,
        scopes: Sequence[Scope],
        query: str,
        *,
        most: int = 5,
        max_tokens: int = 1_600,
        by_meaning: bool = True,
    ) -> list[FoundPiece]:
        """None: it never ends."""
        self.asked.append((tag, scopes, query, max_tokens))
        if isinstance(self._found, Exception):
            raise self._found
        if self._found is None:
            await asyncio.Event().wait()
        return self._found or []

    async def read(
        self, tag: str, scopes: Sequence[Scope], position: int, *, start: int = 0, max_chars: int = 20_000
    ) -> OriginalText | None:
        return None

    async def list_files(self, tag: str, scopes: Sequence[Scope], *, most: int = 200) -> list[MentionedFile]:
        return []


async def answer(search: ToySearch, query: str | None = "path", max_tokens: int = 800) -> tuple[str, str]:
    """What the model reads, and what was counted."""
    metrics = Metrics()
    text = await RecallSearch(search, metrics).answer(_TURN, _PLAN, query, max_tokens)
    lines = metrics.render().decode().splitlines()
    return text, "".join(line for line in lines if line.startswith("gateway_recall_searches_total{"))


async def test_what_is_found_is_read_with_its_position() -> None:
    search = ToySearch([_PIECE])
    text, counted = await answer(search)
    assert "message 2" in text and "the secret path" in text
    assert 'result="found",way="tool"' in counted
    ((tag, scopes, query, max_tokens),) = search.asked
    assert (tag, query, max_tokens) == (make_tag(_TURN.owner), "path", 800)
    assert [scope[:2] for scope in scopes] == [(_TURN.conversation_id, None), ("elsewhere", 3)]


async def test_nothing_found_is_said() -> None:
    text, counted = await answer(ToySearch([]))
    assert "Nothing was found" in text and 'result="nothing"' in counted


@pytest.mark.parametrize(("query", "max_tokens"), [(None, 800), ("  ", 800), ("path", 99), ("path", -5)])
async def test_what_cannot_be_searched_is_not(query: str | None, max_tokens: int) -> None:
    search = ToySearch([_PIECE])
    text, counted = await answer(search, query, max_tokens)
    assert text and "secret" not in text
    assert not search.asked and not counted


@pytest.mark.parametrize("found", [ValueError("the query was path"), None])
async def test_a_search_that_fails_or_never_ends_costs_an_answer_and_says_no_text(
    found: Exception | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall_search, "_SECONDS", 0.01)
    with caplog.at_level(logging.WARNING):
        text, counted = await answer(ToySearch(found))
    assert "failed" in text and 'result="failed"' in counted
    assert "path" not in caplog.text and "search of originals failed" in caplog.text


async def test_a_search_that_failed_says_why_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    text, counted = await answer(ToySearch(SearchFailed("the query took too long")))
    assert "search failed" in text and 'result="failed"' in counted
    assert "search of originals failed: the query took too long" in caplog.text


def test_a_pivot_made_here_needs_no_second_scope() -> None:
    own = make_plan(replace(_PIVOT, conversation=_TURN.conversation_id))
    for plan in (own, make_plan(replace(_PIVOT, conversation=""))):
        assert [scope[:2] for scope in find_scopes(_TURN, plan)] == [(_TURN.conversation_id, None)]


def test_only_what_the_chain_or_the_pivot_proves_is_accepted() -> None:
    chain = [link.hex() for link in _RECEIVED.conversation.chain]
    rekeyed = replace(_PIVOT, origin="before it was cleared")
    (_, scope) = find_scopes(_TURN, make_plan(rekeyed))
    assert scope.accepts is not None
    assert all(scope.accepts(position, link) for position, link in enumerate(chain[1:]))
    assert scope.accepts(2, "before it was cleared") and not scope.accepts(1, "before it was cleared")
    assert not scope.accepts(0, chain[2]) and not scope.accepts(len(chain), chain[-1])
    (own,) = find_scopes(_TURN, make_plan(None))
    assert own.accepts is not None and not own.accepts(2, "before it was cleared")
