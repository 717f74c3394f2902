from itertools import combinations, product

import pytest

from tests.covering import choose_cover, cover, cover_product

_COLUMNS = ((40, 60, 150), (1_000, 4_096, 8_192, 32_000), (True, False), ("one", "many"))


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_a_cover_has_every_combination_of_the_asked_strength(strength: int) -> None:
    rows = list(product(*_COLUMNS))
    chosen = [rows[place] for place in choose_cover(rows, strength)]
    for columns in combinations(range(len(_COLUMNS)), strength):
        wanted = set(product(*(_COLUMNS[column] for column in columns)))
        assert {tuple(row[column] for column in columns) for row in chosen} == wanted


def test_a_pairwise_cover_is_much_smaller_than_the_product() -> None:
    rows = list(product(*_COLUMNS))
    assert len(rows) == 48
    assert len(choose_cover(rows)) <= 16


def test_a_combination_that_never_occurs_is_not_asked_for() -> None:
    rows = [("thinks", "small"), ("plain", "small"), ("plain", "large")]
    assert choose_cover(rows) == [0, 1, 2]
    assert choose_cover(rows, strength=1) == [0, 2]


def test_rows_outside_the_cover_are_marked_as_exhaustive() -> None:
    cases = cover(["aa", "ab", "ba", "bb", "a"], lambda case: (case[0], case[-1]), strength=1)
    assert [case.values for case in cases] == [("aa",), ("ab",), ("ba",), ("bb",), ("a",)]
    assert [[mark.name for mark in case.marks] for case in cases] == [
        [],
        ["exhaustive"],
        ["exhaustive"],
        [],
        ["exhaustive"],
    ]


def test_a_product_gives_one_argument_for_each_column() -> None:
    cases = cover_product((1, 2), "xy", strength=1)
    assert [case.values for case in cases] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert [bool(case.marks) for case in cases] == [False, True, True, False]
