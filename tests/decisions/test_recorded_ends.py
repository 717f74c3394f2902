"""Recorded histories whose clients have cleared results: found again, and never taken for another one."""

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, permutations
from random import Random
from typing import Any

import pytest

from gateway.core.history.conversation import Conversation
from gateway.core.history.ends import (
    PLACEHOLDERS,
    HistoryEnd,
    HistorySource,
    continue_history,
    find_end_key,
    find_ends,
    find_placeholders,
    make_history_end,
)
from tests.decisions.builders import converse
from tests.shared_data import SHARED, requires_shared

pytestmark = requires_shared

_TRANSCRIPTS = SHARED / "data" / "transcripts"
# A partial proof needs less where the client names its session.
_NAMED = HistorySource(b"source", is_named=True)
_UNNAMED = _NAMED._replace(is_named=False)
_PLACEHOLDERS = find_placeholders("")
_EDITS = ("An edited result.", f"{PLACEHOLDERS[0]} by hand", "")
_PAIRS = 10_000


@cache
def read_manifest() -> Any:
    return json.loads((_TRANSCRIPTS / "MANIFEST.json").read_text("utf-8"))


@cache
def load(file: str) -> list[Any]:
    found: list[Any] = json.loads((_TRANSCRIPTS / file).read_text("utf-8"))["messages"]
    return found


def list_files() -> list[str]:
    return [entry["file"] for entry in read_manifest()["entries"]]


def list_requests(file: str) -> list[int]:
    """How many messages each request has."""
    roles = [message["role"] for message in load(file)]
    return [at for at, (before, role) in enumerate(pairwise(roles), 1) if role == "assistant" != before]


def clear(messages: Sequence[Any], keep: int) -> tuple[list[Any], list[int]]:
    """A placeholder in place of all results but the newest, and where it is now."""
    at = [position for position, message in enumerate(messages) if message["role"] == "tool"]
    gone = at[: len(at) - keep]
    cleared = [{**one, "content": PLACEHOLDERS[0]} if at in gone else one for at, one in enumerate(messages)]
    return cleared, gone


def record(messages: Sequence[Any]) -> HistoryEnd | None:
    conversation = converse(messages)
    key = find_end_key(_NAMED, conversation)
    return make_history_end("t", key, conversation) if key is not None else None


def recognize(known: HistoryEnd, messages: Sequence[Any], source: HistorySource) -> Conversation | None:
    received = converse(messages)
    for end, key in find_ends(received.chain[0], _NAMED, received.messages):
        if key == known.key:
            return continue_history(known, received, end, source, _PLACEHOLDERS)
    return None


@pytest.mark.parametrize(("keep", "least"), [(8, 31), (4, 33), (3, 33), (2, 33), (1, 34)])
def test_cleared_results_are_found_and_edited_ones_are_not(keep: int, least: int) -> None:
    """Each history after its last request but one, whose client clears results from then on."""
    found = 0
    for file in list_files():
        *_, length, now = [0, 0, *list_requests(file)]
        known = record(load(file)[:length]) if length else None
        whole = load(file)[:now]
        cleared, gone = clear(whole, keep)
        if known is None or not gone:
            continue
        continued = recognize(known, cleared, _UNNAMED)
        assert continued is not None, file
        assert continued.chain[len(continued.chain) - (now - length) - 1].hex() == known.chain
        found += 1
        for text in _EDITS:
            if whole[gone[0]]["content"] != text:
                cleared[gone[0]] = {**cleared[gone[0]], "content": text}
                assert recognize(known, cleared, _NAMED) is None, file
    assert found >= least


def test_no_recorded_history_is_taken_for_another_one() -> None:
    """All pairs of those that begin alike, and as many drawn ones; with and without cleared results, and
    wherever the record might end, whatever its key is.
    """
    drawn, manifest = Random(20), read_manifest()
    sets = [sorted(each["files"]) for each in (*manifest["collision_sets"], *manifest["fork_sets"])]
    alike = [pair for files in sets for pair in permutations(files, 2)]
    for one, other in alike:
        lengths = list_requests(one)
        for length in sorted({*lengths[:8], *lengths[-8:]}):
            for keep in (None, 4, 0):
                assert not is_taken(one, length, receive(other, keep), other)
    files = [file for file in list_files() if len(list_requests(file)) > 1]
    for _ in range(_PAIRS):
        one, other = drawn.choice(files), drawn.choice(files)
        length = drawn.choice(list_requests(one)[-3:])
        assert one == other or not is_taken(one, length, receive(other, drawn.choice((None, 4))), other)


def is_taken(one: str, length: int, received: Conversation, other: str) -> bool:
    """Whether a request of the second is taken for a continuation of the first, and is none."""
    known = record_at(one, length)
    if known is None or load(one)[:length] == load(other)[:length]:
        return False
    ends = [end for end, _ in find_ends(received.chain[0], _NAMED, received.messages)]
    return any(continue_history(known, received, end, _NAMED, _PLACEHOLDERS) for end in ends)


@cache
def record_at(file: str, length: int) -> HistoryEnd | None:
    return record(load(file)[:length])


@cache
def receive(file: str, keep: int | None) -> Conversation:
    """The newest request. keep: how many results are not cleared; None for all."""
    messages = load(file)[: list_requests(file)[-1]]
    return converse(messages if keep is None else clear(messages, keep)[0])
