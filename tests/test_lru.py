from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from gateway.lru import Lru

_STEPS = st.lists(st.tuples(st.sampled_from(["put", "get", "pop"]), st.integers(0, 9), st.integers(0, 40)))


def test_a_value_is_found_until_it_is_popped() -> None:
    lru: Lru[str, int] = Lru(100)
    assert not lru.put("a", 1, 10)
    assert lru.get("a") == 1
    assert lru.pop("a") == 1
    assert lru.get("a") is None
    assert lru.pop("a") is None
    assert lru.size_bytes == 0


def test_the_least_recently_used_value_is_dropped_first_and_returned() -> None:
    lru: Lru[str, str] = Lru(30)
    for key in "abc":
        lru.put(key, key.upper(), 10)
    lru.get("a")
    assert lru.put("d", "D", 10) == ["B"]
    assert list(lru) == ["c", "a", "d"]


def test_putting_a_key_again_replaces_its_value_and_its_weight() -> None:
    lru: Lru[str, int] = Lru(30)
    lru.put("a", 1, 30)
    assert not lru.put("a", 2, 10)
    assert (lru.get("a"), lru.size_bytes, len(lru)) == (2, 10, 1)


def test_putting_a_key_again_counts_as_a_use() -> None:
    lru: Lru[str, str] = Lru(30)
    for key in "abca":
        lru.put(key, key, 10)
    assert list(lru.put("d", "d", 10)) == ["b"]


def test_a_value_heavier_than_the_bound_is_not_kept_and_drops_no_other() -> None:
    lru: Lru[str, str] = Lru(30)
    lru.put("a", "A", 10)
    assert list(lru.put("b", "B", 31)) == ["B"]
    assert "b" not in lru
    assert "a" in lru


def test_a_value_heavier_than_the_bound_still_removes_the_earlier_value_of_its_key() -> None:
    lru: Lru[str, str] = Lru(30)
    lru.put("a", "old", 10)
    lru.put("a", "new", 31)
    assert "a" not in lru
    assert lru.size_bytes == 0


def test_a_value_that_grows_past_the_bound_drops_others_and_not_itself() -> None:
    lru: Lru[str, str] = Lru(30)
    for key in "abc":
        lru.put(key, key, 10)
    assert list(lru.put("a", "A", 15)) == ["b"]
    assert (lru.get("a"), lru.size_bytes) == ("A", 25)


def test_the_number_can_be_bounded_too() -> None:
    lru: Lru[int, int] = Lru(1_000, 2)
    dropped = [list(lru.put(number, number, 1)) for number in range(4)]
    assert dropped == [[], [], [0], [1]]
    assert list(lru) == [2, 3]


def test_a_peek_is_not_a_use() -> None:
    lru: Lru[int, int] = Lru(1_000, 2)
    lru.put(1, 1, 1)
    lru.put(2, 2, 1)
    assert (lru.peek(1), lru.peek(3), lru.values()) == (1, None, [1, 2])
    assert lru.put(3, 3, 1) == [1]


def test_evictions_count_what_was_dropped_for_room_and_not_what_was_popped() -> None:
    lru: Lru[int, int] = Lru(1_000, 2)
    for number in range(5):
        lru.put(number, number, 1)
    lru.pop(4)
    assert lru.evictions == 3


@given(_STEPS, st.integers(0, 100))
def test_it_keeps_what_a_plain_list_in_order_of_use_would_keep(
    steps: list[tuple[str, int, int]], max_bytes: int
) -> None:
    lru: Lru[int, int] = Lru(max_bytes, 6)
    expected: OrderedDict[int, int] = OrderedDict()
    for step, key, weight in steps:
        if step == "get" and key in expected:
            expected.move_to_end(key)
        elif step != "get":
            expected.pop(key, None)
        if step == "put" and weight <= max_bytes:
            expected[key] = weight
            while sum(expected.values()) > max_bytes or len(expected) > 6:
                expected.popitem(last=False)
        if step == "put":
            lru.put(key, weight, weight)
        elif step == "get":
            assert lru.get(key) == expected.get(key)
        else:
            lru.pop(key)
        assert list(lru) == list(expected)
        assert lru.size_bytes == sum(expected.values())
