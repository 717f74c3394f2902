"""Patches that went by: unified diffs, the patch format of Codex, and blocks of SEARCH and REPLACE."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gateway.core.session.work import ChangeKind

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
_REPLACED: Final = re.compile(r"(?:>{5,9}|\+{5,9}) ?REPLACE\b[^\n]*")


class PatchedFile(NamedTuple):
    """additions, deletions: None for a file that is deleted as a whole. diff: hunks."""

    path: str
    kind: ChangeKind
    additions: int | None
    deletions: int | None
    diff: str
    moved_from: str | None = None
    # What the patch makes of a new file.
    text: str | None = None


class Replacement(NamedTuple):
    old: str
    new: str
    is_everywhere: bool = False


def parse_codex_patch(text: str) -> list[PatchedFile] | None:
    """The files of a patch between `*** Begin Patch` and `*** End Patch`; None if it is no such patch."""
    start = text.find(_BEGIN)
    if start < 0:
        return None
    files: list[PatchedFile] = []
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


def _parse_section(lines: list[str]) -> Iterator[PatchedFile]:
    head = _FILE.fullmatch(lines[0].strip())
    if head is None:
        return
    kind, path = _KINDS[head.group(1)], head.group(2).strip()
    body = [line for line in lines[1:] if not line.startswith("*** ")]
    moves = [found.group(1).strip() for line in lines[1:] if (found := _MOVE.fullmatch(line.strip()))]
    added = [line[1:] for line in body if line.startswith("+")]
    removed = sum(line.startswith("-") for line in body)
    if kind == "deleted":
        yield PatchedFile(path, kind, None, None, "")
    elif kind == "created":
        text = "".join(f"{line}\n" for line in added)
        diff = f"@@ -0,0 +1,{len(added)} @@\n" + "".join(f"+{line}\n" for line in added)
        yield PatchedFile(path, kind, len(added), 0, diff if added else "", text=text)
    else:
        diff = "".join(f"{line}\n" for line in body)
        diff = diff if not body or body[0].startswith("@@") else "@@\n" + diff
        is_moved = moves and not added and not removed
        yield PatchedFile(
            moves[-1] if moves else path,
            "moved" if is_moved else kind,
            len(added),
            removed,
            diff,
            moved_from=path if moves else None,
        )


def parse_unified_diff(text: str) -> list[PatchedFile] | None:
    """The files of a unified diff; None if it is none, or if a hunk does not hold what its header says."""
    lines = text.split("\n")
    files: list[PatchedFile] = []
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


def _make_file(old: str, new: str, hunks: list[str]) -> PatchedFile:
    kind: ChangeKind = "created" if old == _NOWHERE else "deleted" if new == _NOWHERE else "changed"
    before, after = _strip_prefix(old, "a/"), _strip_prefix(new, "b/")
    body = [line for line in hunks if not _HUNK.match(line)]
    added = [line[1:] for line in body if line.startswith("+")]
    is_moved = kind == "changed" and before != after
    return PatchedFile(
        before if kind == "deleted" else after,
        kind,
        len(added),
        sum(line.startswith("-") for line in body),
        "".join(f"{line}\n" for line in hunks),
        moved_from=before if is_moved else None,
        text="".join(f"{line}\n" for line in added) if kind == "created" else None,
    )


def _strip_prefix(path: str, prefix: str) -> str:
    return path.removeprefix(prefix)


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
