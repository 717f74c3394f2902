from hypothesis import given
from hypothesis import strategies as st

from gateway.lru import Lru

_STEPS = st.lists(st.tuples(st.sampled_from(["put", "get", "pop"]), st.integers(0, 9), st.integers(0, 40)))


def test_what_was_put_is_found_and_what_was_taken_is_not() -> None:
    lru: Lru[str, int] = Lru(100)
    assert not lru.put("a", 1, 10)
    assert lru.get("a") == 1
    assert lru.pop("a") == 1
    assert lru.get("a") is None
    assert lru.pop("a") is None
    assert lru.size_bytes == 0


def test_what_was_not_used_goes_first_and_is_given_back() -> None:
    lru: Lru[str, str] = Lru(30)
    for key in "abc":
        lru.put(key, key.upper(), 10)
    lru.get("a")
    assert lru.put("d", "D", 10) == ["B"]
    assert set(lru) == {"a", "c", "d"}


def test_putting_a_key_again_replaces_its_value_and_its_weight() -> None:
    lru: Lru[str, int] = Lru(30)
    lru.put("a", 1, 30)
    assert not lru.put("a", 2, 10)
    assert (lru.get("a"), lru.size_bytes, len(lru)) == (2, 10, 1)


def test_something_heavier_than_all_is_not_kept_and_drives_nothing_out() -> None:
    lru: Lru[str, str] = Lru(30)
    lru.put("a", "A", 10)
    assert list(lru.put("b", "B", 31)) == ["B"]
    assert "b" not in lru
    assert "a" in lru


def test_something_heavier_than_all_still_replaces_what_had_its_key() -> None:
    lru: Lru[str, str] = Lru(30)
    lru.put("a", "old", 10)
    lru.put("a", "new", 31)
    assert "a" not in lru
    assert lru.size_bytes == 0


def test_what_was_just_put_again_is_not_what_makes_room_for_itself() -> None:
    lru: Lru[int, str] = Lru(100)
    for number in range(64):
        lru.put(number, "light", 1)
    gone = lru.put(60, "heavy", 99)
    assert (len(gone), lru.get(60), lru.size_bytes) == (62, "heavy", 100)


@given(_STEPS, st.integers(0, 100))
def test_the_weight_never_passes_the_bound_and_is_always_the_sum(
    steps: list[tuple[str, int, int]], max_bytes: int
) -> None:
    lru: Lru[int, int] = Lru(max_bytes)
    weights: dict[int, int] = {}
    for step, key, weight in steps:
        if step == "put":
            lru.put(key, weight, weight)
            weights[key] = weight
        elif step == "get":
            assert lru.get(key) in (None, weights.get(key))
        else:
            lru.pop(key)
        assert lru.size_bytes == sum(weights[kept] for kept in lru) <= max_bytes


def test_the_number_can_be_bounded_too() -> None:
    lru: Lru[int, int] = Lru(1_000, 2)
    gone = [list(lru.put(number, number, 1)) for number in range(4)]
    assert gone == [[], [], [0], [1]]
    assert list(lru) == [2, 3]


def test_a_look_keeps_nothing_alive() -> None:
    lru: Lru[int, int] = Lru(1_000, 2)
    lru.put(1, 1, 1)
    lru.put(2, 2, 1)
    assert (lru.peek(1), lru.peek(3), lru.values()) == (1, None, [1, 2])
    assert lru.put(3, 3, 1) == [1]


def test_what_is_used_between_any_two_others_stays() -> None:
    lru: Lru[int, int] = Lru(1_000, 3)
    lru.put(-1, -1, 1)
    for number in range(100):
        assert lru.get(-1) == -1
        lru.put(number, number, 1)
    assert set(lru) == {-1, 98, 99}


def test_where_all_were_used_the_oldest_goes_and_the_new_one_stays() -> None:
    lru: Lru[int, int] = Lru(1_000, 3)
    for number in range(3):
        lru.put(number, number, 1)
        lru.get(number)
    assert list(lru.put(3, 3, 1)) == [0]
    assert list(lru) == [1, 2, 3]


def test_one_that_grows_past_the_bound_drives_out_others_not_itself() -> None:
    lru: Lru[str, str] = Lru(30)
    for key in "abc":
        lru.put(key, key, 10)
        lru.get(key)
    assert list(lru.put("a", "A", 15)) == ["b"]
    assert (lru.get("a"), lru.size_bytes) == ("A", 25)


def test_what_is_new_and_in_use_outlives_what_was_used_before() -> None:
    """However often that was; a round of many that come, are used, and make place for the next ones."""
    lru: Lru[tuple[int, int], int] = Lru(1_000_000, 280)
    for round_ in range(4):
        for number in range(160):
            lru.put((round_, number), number, 100)
        for _ in range(3):
            for number in range(160):
                assert lru.get((round_, number)) == number
                lru.put((round_, number), number, 101)


@given(st.lists(st.integers(0, 60), max_size=400))
def test_what_was_used_among_the_last_few_is_there(uses: list[int]) -> None:
    """Of a cache for forty, with an eighth of slack."""
    lru: Lru[int, int] = Lru(1_000, 40)
    for at, key in enumerate(uses):
        if lru.get(key) is None:
            lru.put(key, key, 1)
        assert all(other in lru for other in uses[max(0, at - 33) : at + 1])
