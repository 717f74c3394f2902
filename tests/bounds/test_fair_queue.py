"""Whose turn is next."""

from gateway.bounds.fair_queue import FairQueue


def make_queue(*items: str) -> FairQueue[str]:
    """The first letter of an item is its owner."""
    queue: FairQueue[str] = FairQueue()
    for item in items:
        queue.put(item[0], item)
    return queue


def take_all(queue: FairQueue[str]) -> list[str]:
    taken = []
    while (item := queue.take()) is not None:
        taken.append(item)
    return taken


def test_owners_take_turns_and_each_is_served_in_order() -> None:
    assert take_all(make_queue("a1", "a2", "a3", "b1", "c1", "b2")) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_an_owner_that_is_excluded_keeps_its_turn() -> None:
    queue = make_queue("a1", "b1", "b2")
    assert queue.take({"a"}) == "b1"
    assert queue.take({"a", "b"}) is None
    assert take_all(queue) == ["a1", "b2"]


def test_what_is_dropped_is_not_taken_and_not_counted() -> None:
    queue = make_queue("a1", "a2", "b1")
    assert (len(queue), queue.count("a"), queue.count("c")) == (3, 2, 0)
    assert queue.drop("a", "a1") and not queue.drop("a", "a1") and not queue.drop("c", "c1")
    assert (len(queue), queue.count("a")) == (2, 1)
    assert take_all(queue) == ["a2", "b1"]
    assert len(queue) == 0
