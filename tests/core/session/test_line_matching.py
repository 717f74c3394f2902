from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.session.line_matching import match_lines

_LINES = st.lists(st.sampled_from("abcde"), max_size=14)


def _count_common(old: list[str], new: list[str]) -> int:
    """The length of a longest common subsequence, by the table of the textbook."""
    table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, one in enumerate(old):
        for j, other in enumerate(new):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(_LINES, _LINES)
def test_as_many_lines_match_as_can(old: list[str], new: list[str]) -> None:
    pairs = match_lines(old, new)
    assert pairs is not None
    assert len(pairs) == _count_common(old, new)
    assert all(old[i] == new[j] for i, j in pairs)
    assert all(before[0] < after[0] and before[1] < after[1] for before, after in pairwise(pairs))


def test_texts_that_differ_in_very_many_lines_are_not_compared() -> None:
    assert match_lines(["a"] * 700 + ["b"] * 700, ["b"] * 700 + ["a"] * 700) is None


def test_lines_that_only_one_text_has_cost_nothing() -> None:
    old, new = [f"old {at}" for at in range(50_000)], [f"new {at}" for at in range(50_000)]
    assert match_lines([*old, "same"], [*new, "same", "last"]) == [(50_000, 50_000)]
