"""The difference of two texts in lines, as version control counts it.

Bounded: texts that would take long are not compared.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

# The time grows with the square of this: some 80 ms at the bound.
_MOST_DIFFERENCES: Final = 400

_Pair = tuple[int, int]


def match_lines(old: Sequence[str], new: Sequence[str]) -> list[_Pair] | None:
    """Indexes of equal lines, ascending in both; None if the texts differ too much.

    A longest common subsequence, so the fewest lines count as changed: Myers, An O(ND) Difference Algorithm
    and Its Variations (1986), the greedy form; version control uses the same.
    """
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


# As `diff -u` has it.
CONTEXT_LINES: Final = 3
_NO_NEWLINE: Final = "\\ No newline at end of file\n"

# Whether the lines are equal; start and end of them in the old and in the new text.
_Opcode = tuple[bool, int, int, int, int]


class LineDiff(NamedTuple):
    """text: hunks of a unified diff."""

    additions: int
    deletions: int
    text: str


def split_lines(text: str) -> list[str]:
    """Lines with their ends. Only a newline ends one, as in version control."""
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def count_lines(text: str) -> int:
    return text.count("\n") + (0 if not text or text.endswith("\n") else 1)


def diff_lines(old: str, new: str, first_line: int | None = None) -> LineDiff | None:
    """None if the texts differ too much to be compared. first_line: where the texts begin in their file, from
    1; with None the hunks do not say where they are.
    """
    before, after = split_lines(old), split_lines(new)
    opcodes = _list_opcodes(before, after)
    if opcodes is None:
        return None
    return LineDiff(*_count_changes(opcodes), _render(before, after, opcodes, first_line))


def _count_changes(opcodes: list[_Opcode]) -> tuple[int, int]:
    """Added and deleted lines."""
    changes = [(i2 - i1, j2 - j1) for is_equal, i1, i2, j1, j2 in opcodes if not is_equal]
    return sum(added for _, added in changes), sum(deleted for deleted, _ in changes)


def diff_fragments(old: str, new: str) -> LineDiff | None:
    """The difference that a replacement makes in a file that is not known; None if it is not certain.

    The texts may begin and end inside of lines, and the rest of these lines counts, too. So it is compared
    for all four cases, and certain if they agree. The file is taken to end with a newline.
    """
    if not old:
        return None
    shown = diff_lines(_end_line(old), _end_line(new))
    if shown is None or _has_same_edges(old, new):
        return shown
    found: set[tuple[int, int]] = set()
    for before in ("", "\0"):
        for after in ("\n", "\0\n"):
            opcodes = _list_opcodes(
                split_lines(f"{before}{old}{after}"), split_lines(f"{before}{new}{after}")
            )
            if opcodes is None:
                return None
            found.add(_count_changes(opcodes))
    return LineDiff(*found.pop(), shown.text) if len(found) == 1 else None


def _has_same_edges(old: str, new: str) -> bool:
    """Whether both have the same first and the same last line: what stands beside them changes nothing."""
    before, after = old.split("\n"), new.split("\n")
    return min(len(before), len(after)) > 1 and before[0] == after[0] and before[-1] == after[-1]


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _list_opcodes(before: list[str], after: list[str]) -> list[_Opcode] | None:
    """What is equal, and what is put in place of what, in turns."""
    pairs = match_lines(before, after)
    if pairs is None:
        return None
    opcodes: list[_Opcode] = []
    i = j = at = 0
    while at < len(pairs):
        start = at
        while at + 1 < len(pairs) and pairs[at + 1] == (pairs[at][0] + 1, pairs[at][1] + 1):
            at += 1
        (i1, j1), (i2, j2) = pairs[start], (pairs[at][0] + 1, pairs[at][1] + 1)
        if i1 > i or j1 > j:
            opcodes.append((False, i, i1, j, j1))
        opcodes.append((True, i1, i2, j1, j2))
        i, j, at = i2, j2, at + 1
    if i < len(before) or j < len(after):
        opcodes.append((False, i, len(before), j, len(after)))
    return opcodes


def _group(opcodes: list[_Opcode]) -> list[list[_Opcode]]:
    """Hunks: changes with their context. Two that are closer than two contexts are one."""
    groups: list[list[_Opcode]] = []
    group: list[_Opcode] = []
    for at, (is_equal, i1, i2, j1, j2) in enumerate(opcodes):
        if not is_equal:
            group.append((False, i1, i2, j1, j2))
            continue
        is_last = at == len(opcodes) - 1
        if group and (is_last or i2 - i1 > 2 * CONTEXT_LINES):
            end = min(i2, i1 + CONTEXT_LINES)
            groups.append([*group, (True, i1, end, j1, j1 + end - i1)])
            group = []
        if not is_last:
            start = max(i1, i2 - CONTEXT_LINES) if not group else i1
            group.append((True, start, i2, j2 - (i2 - start), j2))
    if any(not is_equal for is_equal, *_ in group):
        groups.append(group)
    return groups


def _render(before: list[str], after: list[str], opcodes: list[_Opcode], first_line: int | None) -> str:
    parts: list[str] = []
    for group in _group(opcodes):
        parts.append("@@\n" if first_line is None else _make_header(group, first_line - 1))
        for is_equal, i1, i2, j1, j2 in group:
            if is_equal:
                parts.append(_render_lines(" ", before[i1:i2]))
                continue
            parts.append(_render_lines("-", before[i1:i2]))
            parts.append(_render_lines("+", after[j1:j2]))
    return "".join(parts)


def _make_header(group: list[_Opcode], offset: int) -> str:
    old = _make_range(group[0][1] + offset, group[-1][2] + offset)
    new = _make_range(group[0][3] + offset, group[-1][4] + offset)
    return f"@@ -{old} +{new} @@\n"


def _make_range(start: int, end: int) -> str:
    """As `diff -u` writes it: an empty range is named by the line before it."""
    if end - start == 1:
        return f"{start + 1}"
    return f"{start + 1 if end > start else start},{end - start}"


def _render_lines(mark: str, lines: list[str]) -> str:
    """Only the last line of a text may lack its end."""
    text = "".join([mark + line for line in lines])
    return text if not text or text.endswith("\n") else f"{text}\n{_NO_NEWLINE}"
