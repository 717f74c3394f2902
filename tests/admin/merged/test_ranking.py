from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.merged.ranking import merge_lists, put_bodies_first, rank
from gateway.admin.merged.worker_client import Gone, Silent, WorkerAnswer, WorkerPage

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
    first = {"conversations": [entry("x", 9, model="new"), entry("y", 2)]}
    second = {"conversations": [entry("z", 5), entry("x", 1, model="old")]}
    merged = merge_lists([first, second])
    assert [each["id"] for each in merged] == ["x", "z", "y"]
    assert merged[0]["model"] == "new"
    assert merge_lists([second, first]) == merged


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 999)), max_size=4), max_size=3),
)
def test_the_list_is_ordered_and_has_each_id_once(parts: list[list[tuple[str, int]]]) -> None:
    merged = merge_lists([{"conversations": [entry(*each) for each in part]} for part in parts])
    times = [each["last_seen"] for each in merged]
    assert times == sorted(times, reverse=True)
    everything = [each for part in parts for each in part]
    newest = {
        name: _TIME.format(max(at for other, at in everything if other == name)) for name, _ in everything
    }
    assert {each["id"]: each["last_seen"] for each in merged} == newest
    assert len(merged) == len(newest)


@pytest.mark.parametrize("wrong", [None, [], "text", {"conversations": [1, {"id": 2}]}, {"error": "x"}])
def test_what_is_no_list_of_conversations_adds_nothing(wrong: object) -> None:
    assert merge_lists([wrong, {"conversations": [entry("x", 1)]}]) == [entry("x", 1)]
