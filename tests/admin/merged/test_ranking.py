from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.activity.rows import Row
from gateway.admin.conversation_list import make_page
from gateway.admin.merged.ranking import merge_pages, merge_rows, put_bodies_first, rank
from gateway.admin.merged.worker_client import Gone, Silent, WorkerAnswer, WorkerPage
from gateway.admin.operations import ListQuery
from tests.builders.rows import row

_TIME = "2026-11-23T05:00:00.{:03}+00:00"


def entry(identity: str, milliseconds: int, **more: Any) -> dict[str, Any]:
    return {"id": identity, "last_seen": _TIME.format(milliseconds), **more}


def page(milliseconds: int, *, has_body: bool = False) -> WorkerPage:
    return WorkerPage(200, msgspec.json.encode(entry("c", milliseconds, body_in_memory=has_body)), {})


_MISSING = WorkerPage(404, b'{"error": "no such conversation"}', {})
_PATHS = [Path(name) for name in "abcd"]


def test_the_worker_that_saw_the_newest_turn_comes_first_and_those_that_know_nothing_last() -> None:
    ranking = rank(_PATHS, [_MISSING, page(1), page(3), page(2)])
    assert ranking.sockets == [Path("c"), Path("d"), Path("b"), Path("a")]
    assert not ranking.has_silent


@pytest.mark.parametrize(("answer", "is_silent"), [(Silent(), True), (Gone(), False)])
def test_a_worker_that_does_not_answer_is_left_out(answer: WorkerAnswer, is_silent: bool) -> None:
    ranking = rank(_PATHS[:2], [answer, page(1)])
    assert (ranking.sockets, ranking.has_silent) == ([Path("b")], is_silent)


def test_a_compaction_goes_to_the_newest_body_if_there_is_one() -> None:
    answers = [page(4), page(2, has_body=True), page(3, has_body=True), _MISSING]
    assert put_bodies_first(rank(_PATHS, answers)) == [Path("c"), Path("b"), Path("a")]
    assert put_bodies_first(rank(_PATHS[:2], [page(1), page(2)])) == [Path("b"), Path("a")]


def test_each_conversation_is_listed_once_as_its_newest_worker_shows_it() -> None:
    first = [row("x", 9, model="new"), row("y", 2)]
    second = [row("z", 5), row("x", 1, model="old")]
    merged = merge_rows([*first, *second])
    assert [each.id for each in merged] == ["x", "z", "y"]
    assert merged[0].model == "new"
    assert merge_rows([*second, *first]) == merged


_PARTS = st.lists(st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 999), max_size=6), max_size=3)


@given(_PARTS, st.integers(1, 7))
def test_the_pages_of_the_merged_list_hold_each_row_once(parts: list[dict[str, int]], limit: int) -> None:
    """Nothing changes while somebody pages through it."""
    lists = [[row(name, at) for name, at in part.items()] for part in parts]
    everything = merge_rows(each for rows in lists for each in rows)
    seen, cursor = list[Row](), None
    while True:
        query = ListQuery(limit=limit, cursor=cursor)
        page = merge_pages([make_page(rows, query) for rows in lists], limit)
        seen += page.conversations
        if page.next is None:
            break
        cursor = page.next
    # An older state of a row may come again behind its newest one; a reader knows it by its id.
    first = dict[str, Row]()
    for each in seen:
        first.setdefault(each.id, each)
    assert list(first.values()) == everything
