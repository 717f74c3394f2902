"""Writes that wait: the newest of each key, within a bound."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.redis.unsent import Unsent, Write


def test_a_later_write_replaces_an_earlier_one_of_its_key() -> None:
    unsent = Unsent(10_000)
    first, second = Write("a", b"1", 10), Write("a", b"2", 10)
    assert unsent.put(first) and unsent.put(second)
    unsent.remove(first)
    assert unsent.find("a") is second and list(unsent) == [second]
    unsent.remove(second)
    assert unsent.find("a") is None and len(unsent) == 0


def test_an_expired_write_has_no_value() -> None:
    write = Write("a", b"1", 10)
    assert [write.read(9.9), write.read(10)] == [b"1", None]


def test_the_oldest_that_nobody_was_promised_make_room() -> None:
    unsent = Unsent(3 * 1_301)
    promised = Write("p", bytes(1_000), 10, is_promised=True)
    for write in (promised, Write("a", bytes(1_000), 10), Write("b", bytes(1_000), 10)):
        assert unsent.put(write)
    assert unsent.put(Write("c", bytes(1_000), 10))
    assert [write.key for write in unsent] == ["p", "b", "c"]


def test_without_room_a_write_is_refused_and_a_delete_is_not() -> None:
    unsent = Unsent(1_400)
    assert unsent.put(Write("p", bytes(1_000), 10, is_promised=True))
    assert not unsent.put(Write("a", bytes(1_000), 10))
    assert unsent.put(Write("b", None))
    assert [write.key for write in unsent] == ["p", "b"]


def test_everything_of_a_kind_is_removed_and_its_records_are_named() -> None:
    unsent = Unsent(10_000)
    for write in (Write("a1", b"", 10), Write("a2", None), Write("b1", b"", 10)):
        unsent.put(write)
    assert unsent.remove_all(lambda key: key.startswith("a")) == {"a1"}
    assert [write.key for write in unsent] == ["b1"]


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 900) | st.none(), st.booleans()), max_size=40)
)
def test_the_bound_holds_whatever_is_written(steps: list[tuple[str, int | None, bool]]) -> None:
    unsent = Unsent(3_000)
    for key, size, is_promised in steps:
        value = None if size is None else bytes(size)
        unsent.put(Write(key, value, 10, is_promised=is_promised))
        assert sum(write.cost_bytes for write in unsent if write.value is not None) <= 3_000
