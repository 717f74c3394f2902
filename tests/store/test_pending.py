from concurrent.futures import Future

import pytest

from gateway.store.errors import StoreError, Unusable
from gateway.store.pending import Op, Pending
from tests.hostile.steps import count_steps

ALL = {"max_ops": 512, "max_bytes": 1 << 20}


def test_the_newest_write_of_a_key_wins_and_moves_to_the_end() -> None:
    pending = Pending(10_000)
    for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
        assert pending.put(key, Op(value, 1.0))
    assert [(key, op.value) for key, op in pending.take(**ALL).items()] == [("b", b"2"), ("a", b"3")]


def test_taken_operations_stay_visible_until_they_are_settled() -> None:
    pending = Pending(10_000)
    pending.put("a", Op(b"1", 1.0))
    pending.take(**ALL)
    assert pending.find(["a"])["a"].value == b"1"
    pending.put("a", Op(b"2", 1.0))
    assert pending.find(["a"])["a"].value == b"2"
    assert pending.find_prefix("a")["a"].value == b"2"
    pending.settle()
    assert pending.take(**ALL)["a"].value == b"2"
    pending.settle()
    assert pending.find(["a"]) == {}


def test_a_waiter_of_a_replaced_write_is_resolved_by_its_successor() -> None:
    pending, waiter = Pending(10_000), Future[None]()
    pending.put("a", Op(b"1", 1.0, (waiter,)))
    pending.put("a", Op(b"2", 1.0))
    pending.take(**ALL)
    assert not waiter.done()
    pending.settle()
    assert waiter.result(0) is None


def test_a_batch_is_bounded_in_operations_and_in_bytes() -> None:
    pending = Pending(1 << 20)
    for number in range(10):
        pending.put(f"a{number}", Op(bytes(1_000), 1.0))
    assert len(pending.take(max_ops=4, max_bytes=1 << 20)) == 4
    pending.settle()
    assert len(pending.take(max_ops=10, max_bytes=2_000)) == 2


def test_beyond_the_bound_new_writes_are_refused_and_deletes_are_not() -> None:
    pending = Pending(3_000)
    assert [pending.put(f"a{number}", Op(bytes(1_000), 1.0)) for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert pending.put("a0", Op(bytes(1_000), 1.0))
    assert pending.put("a9", Op(None))
    pending.take(**ALL)
    pending.settle()
    assert pending.put("a5", Op(bytes(1_000), 1.0))


def test_while_the_disk_cannot_be_written_the_newest_stay_in_memory() -> None:
    pending, waiter = Pending(3_000), Future[None]()
    pending.put("a0", Op(bytes(1_000), 1.0, (waiter,)))
    pending.take(**ALL)
    pending.put("a1", Op(bytes(1_000), 1.0))
    pending.return_taken(Unusable("full"))
    with pytest.raises(StoreError, match="full"):
        waiter.result(0)
    assert pending.put("a2", Op(bytes(1_000), 1.0))
    assert list(pending.find_prefix("a")) == ["a1", "a2"]
    assert not pending.put("a3", Op(bytes(5_000), 1.0))


def test_a_write_that_was_replaced_while_it_was_taken_does_not_come_back() -> None:
    pending = Pending(10_000)
    pending.put("a", Op(b"old", 1.0))
    pending.put("b", Op(b"1", 1.0))
    pending.take(**ALL)
    pending.put("c", Op(b"2", 1.0))
    pending.put("a", Op(b"new", 1.0))
    pending.return_taken(Unusable("full"))
    assert [(key, op.value) for key, op in pending.take(**ALL).items()] == [
        ("b", b"1"),
        ("c", b"2"),
        ("a", b"new"),
    ]


def test_a_closed_queue_accepts_nothing_and_counts_what_was_lost() -> None:
    pending, waiter = Pending(10_000), Future[None]()
    pending.put("a", Op(b"1", 1.0, (waiter,)))
    assert pending.end() == 1
    assert isinstance(waiter.exception(0), StoreError)
    assert not pending.put("b", Op(b"1", 1.0))


def test_a_cancelled_waiter_is_left_alone() -> None:
    pending, waiter = Pending(10_000), Future[None]()
    pending.put("a", Op(b"1", 1.0, (waiter,)))
    waiter.cancel()
    pending.take(**ALL)
    pending.settle()
    assert waiter.cancelled()


@pytest.mark.parametrize("in_front", [False, True])
def test_a_disk_that_stays_full_costs_no_more_time_the_more_is_waiting(in_front: bool) -> None:
    steps = [_count_steps_of_a_failure(queued, in_front=in_front) for queued in (100, 3_000)]
    assert steps[1] <= steps[0] * 1.1


def _count_steps_of_a_failure(queued: int, *, in_front: bool) -> int:
    pending, waiter = Pending(10 << 20), Future[None]()
    keys = [f"head:{number}" for number in range(queued)]
    for key in ["pivot:1", *keys] if in_front else [*keys, "pivot:1"]:
        pending.put(key, Op(b"1", 1.0, (waiter,) if key == "pivot:1" else ()))
    pending.take(max_ops=50, max_bytes=1 << 20)
    steps = count_steps(lambda: pending.return_taken(Unusable("full")))
    assert isinstance(waiter.exception(0), StoreError)
    assert list(pending.take(max_ops=queued + 1, max_bytes=10 << 20))[-1] == (
        keys[-1] if in_front else "pivot:1"
    )
    return steps
