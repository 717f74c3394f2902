"""Which lines two texts have in common: a longest common subsequence, so the fewest lines count as changed.

Myers, An O(ND) Difference Algorithm and Its Variations (1986), the greedy form; version control uses the
same. Bounded: texts that differ too much are not compared.
"""

from collections.abc import Sequence
from typing import Final

# The time grows with the square of this: some 80 ms at the bound.
_MOST_DIFFERENCES: Final = 400

_Pair = tuple[int, int]


def match_lines(old: Sequence[str], new: Sequence[str]) -> list[_Pair] | None:
    """Indexes of equal lines, ascending in both; None if the texts differ too much."""
    head, shorter = 0, min(len(old), len(new))
    while head < shorter and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    middle = _match_middle(old[head : len(old) - tail], new[head : len(new) - tail])
    if middle is None:
        return None
    return [
        *((at, at) for at in range(head)),
        *((head + i, head + j) for i, j in middle),
        *((len(old) - at, len(new) - at) for at in range(tail, 0, -1)),
    ]


def _match_middle(old: Sequence[str], new: Sequence[str]) -> list[_Pair] | None:
    """A line that only one text has is in no common subsequence."""
    if not old or not new:
        return []
    in_new, in_old = set(new), set(old)
    before = [at for at, line in enumerate(old) if line in in_new]
    after = [at for at, line in enumerate(new) if line in in_old]
    pairs = _find_path([old[at] for at in before], [new[at] for at in after])
    return None if pairs is None else [(before[i], after[j]) for i, j in pairs]


def _find_path(old: Sequence[str], new: Sequence[str]) -> list[_Pair] | None:
    """The furthest points that each number of differences reaches on each diagonal, until one is the end."""
    ends: dict[int, int] = {}
    trace: list[dict[int, int]] = []
    for differences in range(min(len(old) + len(new), _MOST_DIFFERENCES) + 1):
        reached: dict[int, int] = {}
        for diagonal in range(-differences, differences + 1, 2):
            i = _step(ends, diagonal, differences)
            j = i - diagonal
            while i < len(old) and j < len(new) and old[i] == new[j]:
                i, j = i + 1, j + 1
            reached[diagonal] = i
            if i >= len(old) and j >= len(new):
                return _walk_back(trace, len(old), len(new))
        trace.append(reached)
        ends = reached
    return None


def _is_added(ends: dict[int, int], diagonal: int, differences: int) -> bool:
    """Whether the step to this diagonal is a line of the new text, and not one of the old text."""
    if diagonal in (-differences, differences):
        return diagonal == -differences
    return ends[diagonal - 1] < ends[diagonal + 1]


def _step(ends: dict[int, int], diagonal: int, differences: int) -> int:
    """How much of the old text is read after the step to this diagonal."""
    if differences == 0:
        return 0
    is_added = _is_added(ends, diagonal, differences)
    return ends[diagonal + 1] if is_added else ends[diagonal - 1] + 1


def _walk_back(trace: list[dict[int, int]], i: int, j: int) -> list[_Pair]:
    """The equal lines on the way from the end to the beginning, turned round."""
    pairs: list[_Pair] = []
    for differences in range(len(trace), 0, -1):
        ends, diagonal = trace[differences - 1], i - j
        start = _step(ends, diagonal, differences)
        pairs += ((at, at - diagonal) for at in range(i - 1, start - 1, -1))
        is_added = _is_added(ends, diagonal, differences)
        i = start if is_added else start - 1
        j = start - diagonal - (1 if is_added else 0)
    pairs += ((at, at) for at in range(i - 1, -1, -1))
    return pairs[::-1]
