"""Pairwise covers: a few rows of a product of parameters, with every pair of values in one of them.

`make test` runs the rows chosen here. `make test-exhaustive` runs the others.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import combinations, product
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

Row = Sequence[Hashable]
# Columns and their values in one row.
_Group = tuple[tuple[int, Hashable], ...]
_Case = TypeVar("_Case")


def choose_cover(rows: Sequence[Row], strength: int = 2) -> list[int]:
    """The positions of rows that together have every combination of `strength` values that occurs in `rows`.

    Greedy, and the same in every run: the row with the most new combinations is next.
    """
    groups = [set(_list_groups(row, strength)) for row in rows]
    missing = set[_Group]().union(*groups)
    chosen = []
    while missing:
        best = max(range(len(rows)), key=lambda place: len(groups[place] & missing))
        missing -= groups[best]
        chosen.append(best)
    return sorted(chosen)


def _list_groups(row: Row, strength: int) -> Iterator[_Group]:
    return combinations(enumerate(row), min(strength, len(row)))


def cover(cases: Sequence[_Case], read_row: Callable[[_Case], Row], strength: int = 2) -> list[ParameterSet]:
    """All cases for `parametrize`; those outside the cover are marked `exhaustive`."""
    return choose(cases, choose_cover([read_row(case) for case in cases], strength))


def cover_product(*columns: Sequence[Hashable], strength: int = 2) -> list[ParameterSet]:
    """The product of the columns, one for each argument; rows outside the cover are marked `exhaustive`."""
    rows = list(product(*columns))
    return choose_rows(rows, choose_cover(rows, strength))


def choose(cases: Sequence[_Case], by_default: Sequence[int]) -> list[ParameterSet]:
    """All cases for `parametrize`; those at other positions than `by_default` are marked `exhaustive`."""
    marks = _list_marks(len(cases), by_default)
    return [pytest.param(case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


def choose_rows(rows: Sequence[Sequence[object]], by_default: Sequence[int]) -> list[ParameterSet]:
    """The same for rows with one value for each argument of the test."""
    marks = _list_marks(len(rows), by_default)
    return [pytest.param(*row, marks=mark) for row, mark in zip(rows, marks, strict=True)]


def _list_marks(count: int, by_default: Sequence[int]) -> list[tuple[pytest.MarkDecorator, ...]]:
    return [() if place in by_default else (pytest.mark.exhaustive,) for place in range(count)]
