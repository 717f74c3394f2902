import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.allocation import allocate

_NEEDS = st.lists(st.integers(1, 500), max_size=8)


@pytest.mark.parametrize(
    ("needs", "weights", "room", "expected"),
    [
        ([], [], 10, []),
        ([5, 5], [1, 1], 100, [5, 5]),
        ([50, 50], [1, 1], 60, [30, 30]),
        ([50, 50], [2, 1], 60, [36, 23]),
        ([5, 50, 50], [1, 1, 1], 65, [5, 30, 30]),
        ([50, 50, 50], [1, 1, 1], 25, [12, 12, 0]),
        ([50], [1], 9, [0]),
    ],
)
def test_each_gets_the_minimum_first_and_the_rest_by_weight(
    needs: list[int], weights: list[int], room: int, expected: list[int]
) -> None:
    assert allocate(needs, weights, room, 10) == expected


@given(_NEEDS, st.data(), st.integers(0, 1_000), st.integers(1, 100))
def test_no_share_exceeds_its_need_and_their_sum_fits_the_room(
    needs: list[int], data: st.DataObject, room: int, least: int
) -> None:
    weights = [data.draw(st.integers(1, 60)) for _ in needs]
    given_out = allocate(needs, weights, room, least)
    assert len(given_out) == len(needs)
    assert all(0 <= got <= need for got, need in zip(given_out, needs, strict=True))
    assert sum(given_out) <= room
    if sum(needs) <= room:
        assert given_out == needs


@given(_NEEDS, st.integers(0, 1_000), st.integers(0, 500), st.integers(1, 100))
def test_a_larger_room_includes_everything_that_a_smaller_one_does(
    needs: list[int], room: int, more: int, least: int
) -> None:
    weights = [1] * len(needs)
    small, large = (allocate(needs, weights, size, least) for size in (room, room + more))
    assert all(b > 0 for a, b in zip(small, large, strict=True) if a > 0)
