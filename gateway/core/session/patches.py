"""Differences in lines: of two texts, and those of patches that went by: unified diffs, the patch format of
Codex, and blocks of SEARCH and REPLACE.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

from gateway.core.session.work import ChangeKind, FileChange

_BEGIN: Final = "*** Begin Patch"
_END: Final = "*** End Patch"
_FILE: Final = re.compile(r"\*\*\* (Add|Update|Delete) File: (.+)")
_MOVE: Final = re.compile(r"\*\*\* Move to: (.+)")
_HUNK: Final = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_OLD_FILE: Final = re.compile(r"--- (\S[^\t]*)")
_NEW_FILE: Final = re.compile(r"\+\+\+ (\S[^\t]*)")
_NOWHERE: Final = "/dev/null"
_KINDS: Final[dict[str, ChangeKind]] = {"Add": "created", "Update": "changed", "Delete": "deleted"}
_SEARCH: Final = re.compile(r"(?:<{5,9}|-{5,9}) ?SEARCH\b[^\n]*")
_DIVIDER: Final = re.compile(r"={5,9}\s*")
# As `diff -u` has it.
_CONTEXT_LINES: Final = 3
_NO_NEWLINE: Final = "\\ No newline at end of file\n"
_REPLACED: Final = re.compile(r"(?:>{5,9}|\+{5,9}) ?REPLACE\b[^\n]*")


class Replacement(NamedTuple):
    old: str
    new: str
    is_everywhere: bool = False


class LineDiff(NamedTuple):
    """text: hunks of a unified diff."""

    additions: int
    deletions: int
    text: str


def make_change(
    path: str, kind: ChangeKind, shown: LineDiff | None = None, moved_from: str | None = None
) -> FileChange:
    """Without its position. shown: None where the lines are not known."""
    additions, deletions, text = shown or (0 if kind == "deleted" else None, None, "")
    return FileChange(
        position=0,
        path=path,
        kind=kind,
        additions=additions,
        deletions=deletions,
        diff=text,
        moved_from=moved_from,
    )


def compare(old: str, new: str, most_steps: int, first: int | None = None) -> tuple[LineDiff | None, int]:
    """The difference, and how many steps it takes at most; None if these are too many.

    first: the number of the first line in its file, from 1; with None the hunks do not say where they are.
    """
    before, after = split_lines(old), split_lines(new)
    head, shorter = 0, min(len(before), len(after))
    while head < shorter and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    steps = _count_steps(before[head : len(before) - tail], after[head : len(after) - tail])
    if steps > most_steps:
        return None, 0
    start, end = max(head - _CONTEXT_LINES, 0), max(tail - _CONTEXT_LINES, 0)
    before, after = before[start : len(before) - end], after[start : len(after) - end]
    return _render(before, after, first + start if first is not None else None), steps


def _count_steps(before: Sequence[str], after: Sequence[str]) -> int:
    """The matcher goes through all pairs of equal lines for each block that it finds; it leaves out what is
    popular in a long text.
    """
    popular = len(after) // 100 + 1 if len(after) >= 200 else len(after)
    counts = Counter(after)
    pairs = sum(counts[line] for line in before if counts[line] <= popular)
    return (pairs + len(before)) * min(len(before), len(after))


def _render(before: Sequence[str], after: Sequence[str], first: int | None) -> LineDiff:
    additions = deletions = 0
    parts: list[str] = []
    for group in SequenceMatcher(None, before, after).get_grouped_opcodes(_CONTEXT_LINES):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        places = (first - 1 + i1, i2 - i1, first - 1 + j1, j2 - j1) if first is not None else None
        parts.append(_make_header(*places) if places is not None else "@@\n")
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                parts.append(_mark(" ", before[start:end]))
                continue
            deletions, additions = deletions + end - start, additions + new_end - new_start
            parts += (_mark("-", before[start:end]), _mark("+", after[new_start:new_end]))
    return LineDiff(additions, deletions, "".join(parts))


def show_added(text: str, after_line: int | None = 0) -> LineDiff:
    """A text that is put in behind this line; None where it is not known."""
    lines = split_lines(text)
    header = _make_header(after_line, 0, after_line, len(lines)) if after_line is not None else "@@\n"
    return LineDiff(len(lines), 0, header + _mark("+", lines) if lines else "")


def read_created(change: FileChange) -> str | None:
    """What a file held that a change created; None if not all of it is there."""
    lines = split_lines(change.diff)
    added = [line[1:] for line in lines if line.startswith("+")]
    if change.kind != "created" or change.additions != len(added):
        return None
    text = "".join(added)
    return text.removesuffix("\n") if lines and lines[-1] == _NO_NEWLINE else text


def _make_header(old: int, old_lines: int, new: int, new_lines: int) -> str:
    return f"@@ -{_make_range(old, old_lines)} +{_make_range(new, new_lines)} @@\n"


def _make_range(before: int, lines: int) -> str:
    """As `diff -u` writes it: an empty range is named by the line before it."""
    return f"{before + 1}" if lines == 1 else f"{before + 1 if lines else before},{lines}"


def _mark(mark: str, lines: Sequence[str]) -> str:
    """Only the last line of a text may lack its end."""
    text = "".join([mark + line for line in lines])
    return text if not text or text.endswith("\n") else f"{text}\n{_NO_NEWLINE}"


def split_lines(text: str) -> list[str]:
    """Lines with their ends. Only a newline ends one, as in version control."""
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


def end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def parse_codex_patch(text: str) -> list[FileChange] | None:
    """The files of a patch between `*** Begin Patch` and `*** End Patch`; None if it is no such patch."""
    start = text.find(_BEGIN)
    if start < 0:
        return None
    files: list[FileChange] = []
    section: list[str] = []
    for line in text[start:].split("\n"):
        if line.strip() == _END:
            break
        if _FILE.fullmatch(line.strip()) and section:
            files += _parse_section(section)
            section = []
        if section or _FILE.fullmatch(line.strip()):
            section.append(line)
    return [*files, *_parse_section(section)] if section else files


def _parse_section(lines: list[str]) -> Iterator[FileChange]:
    head = _FILE.fullmatch(lines[0].strip())
    if head is None:
        return
    kind, path = _KINDS[head.group(1)], head.group(2).strip()
    body = [line for line in lines[1:] if not line.startswith("*** ")]
    moves = [found.group(1).strip() for line in lines[1:] if (found := _MOVE.fullmatch(line.strip()))]
    added = [line[1:] for line in body if line.startswith("+")]
    if kind == "deleted":
        yield make_change(path, kind)
    elif kind == "created":
        yield make_change(path, kind, show_added("".join(f"{line}\n" for line in added)))
    else:
        diff = "".join(f"{line}\n" for line in body)
        diff = diff if not body or body[0].startswith("@@") else "@@\n" + diff
        shown = LineDiff(len(added), sum(line.startswith("-") for line in body), diff)
        is_moved = moves and not shown.additions and not shown.deletions
        yield make_change(
            moves[-1] if moves else path,
            "moved" if is_moved else kind,
            shown,
            moved_from=path if moves else None,
        )


def parse_unified_diff(text: str) -> list[FileChange] | None:
    """The files of a unified diff; None if it is none, or if a hunk does not hold what its header says."""
    lines = text.split("\n")
    files: list[FileChange] = []
    at = 0
    while at < len(lines):
        old = _OLD_FILE.match(lines[at])
        new = _NEW_FILE.match(lines[at + 1]) if at + 1 < len(lines) else None
        if not old or not new:
            at += 1
            continue
        end = _find_end(lines, at + 2)
        if end is None:
            return None
        if end > at + 2:
            files.append(_make_file(old.group(1).strip(), new.group(1).strip(), lines[at + 2 : end]))
        at = end
    return files or None


def _find_end(lines: list[str], at: int) -> int | None:
    """The end of the hunks that begin here; None if one of them is not whole."""
    while at < len(lines) and (hunk := _HUNK.match(lines[at])):
        old, new = (int(hunk.group(n)) if hunk.group(n) is not None else 1 for n in (2, 4))
        at += 1
        while at < len(lines) and (old > 0 or new > 0 or lines[at].startswith("\\")):
            mark = lines[at][:1]
            old -= mark in " -" or not mark
            new -= mark in " +" or not mark
            if mark not in " +-\\" or old < 0 or new < 0:
                return None
            at += 1
        if old or new:
            return None
    return at


def _make_file(old: str, new: str, hunks: list[str]) -> FileChange:
    kind: ChangeKind = "created" if old == _NOWHERE else "deleted" if new == _NOWHERE else "changed"
    before, after = old.removeprefix("a/"), new.removeprefix("b/")
    body = [line for line in hunks if not _HUNK.match(line)]
    added, deleted = (sum(line.startswith(mark) for line in body) for mark in "+-")
    return make_change(
        before if kind == "deleted" else after,
        kind,
        LineDiff(added, deleted, "".join(f"{line}\n" for line in hunks)),
        moved_from=before if kind == "changed" and before != after else None,
    )


def parse_search_blocks(text: str) -> list[Replacement]:
    """Blocks of `<<<<<<< SEARCH`, `=======` and `>>>>>>> REPLACE`, as Cline, Roo and aider write them. A text
    with a block that is not closed has none.
    """
    blocks: list[Replacement] = []
    old: list[str] = []
    new: list[str] = []
    state = "outside"
    for line in text.split("\n") if "SEARCH" in text else ():
        if state == "outside":
            if _SEARCH.fullmatch(line.strip()):
                old, new, state = [], [], "search"
        elif state == "search":
            if _DIVIDER.fullmatch(line):
                state = "replace"
            else:
                old.append(line)
        elif _REPLACED.fullmatch(line.strip()):
            blocks.append(Replacement(_join(_without_notes(old)), _join(new)))
            state = "outside"
        else:
            new.append(line)
    return blocks if state == "outside" else []


def _without_notes(lines: list[str]) -> list[str]:
    """Roo writes the place before the text: `:start_line:10`, and a line of dashes."""
    if not lines or not lines[0].startswith(":start_line:"):
        return lines
    rest = [line for line in lines[:3] if not re.fullmatch(r":(?:start|end)_line:.*|-{5,9}", line)]
    return [*rest, *lines[3:]]


def _join(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
