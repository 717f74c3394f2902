"""Changes of files out of what calls would do and what their results say, with the lines they added and
deleted.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from gateway.core.session.edits import ApplyPatch, FileAction, InsertLines, ReplaceTexts, WriteFile
from gateway.core.session.outcomes import is_done, says_created
from gateway.core.session.patches import (
    LineDiff,
    Replacement,
    compare,
    end_line,
    make_change,
    read_created,
    show_added,
    split_lines,
)
from gateway.core.session.work import FileChange

# SWE-agent: the tools have no path; their results name the open file.
_OPEN_FILE: Final = re.compile(r"\(Open file: (/[^\n]*)\)\s*\n\(Current directory: ")
# What a file that it makes holds at first.
_NEW_FILE: Final = re.compile(r"\A\[File: [^\n]*? \(1 lines total\)\]\r?\n1:\s*\n\(Open file: ")
_EDGE_CHARS: Final = 1_200
# Of the texts of files that are looked through for all edits of a session: each edit looks through its whole
# file.
_MOST_CHARS: Final = 4 << 20
# Of all comparisons of a session, see `patches.compare`: about a second at the worst.
MOST_STEPS: Final = 10_000_000


@dataclass(slots=True)
class WrittenFiles:
    """Texts of files that the session wrote as a whole. What a file held that it only read is not known.

    What is left for comparing and following is bounded; beyond it, it is not told how many lines a call added
    and deleted.
    """

    left_steps: int = MOST_STEPS
    _texts: dict[str, str] = field(default_factory=dict)
    _left_chars: int = _MOST_CHARS

    def doubt(self) -> None:
        """Something ran that may have changed any file."""
        self._texts.clear()

    def put(self, path: str, text: str) -> None:
        if len(text) <= self._left_chars and self.left_steps:
            self._left_chars -= len(text)
            self._texts[path] = text

    def take(self, path: str) -> str | None:
        return self._texts.pop(path, None)

    def compare(self, old: str, new: str, first: int | None = None) -> LineDiff | None:
        found, steps = compare(old, new, self.left_steps, first)
        self.left_steps -= steps
        return found

    def replace(self, path: str, replacement: Replacement) -> tuple[LineDiff | None, bool]:
        """What a replacement adds and deletes, and whether that is all. In a file that is not known, texts
        count as whole lines.
        """
        old, new, is_everywhere = replacement
        text = self.take(path)
        times = text.count(old) if text is not None else 0
        grown = len(text or "") + times * (len(new) - len(old))
        if text is not None and (times == 1 or (times and is_everywhere)) and grown <= self._left_chars:
            changed = text.replace(old, new)
            self.put(path, changed)
            return self.compare(text, changed, 1), True
        # What ends inside of a line is taken to end with it.
        end = "" if old.endswith("\n") else "\n"
        return self.compare(f"{old}{end}", end_line(f"{new}{end}")), not is_everywhere


@dataclass(frozen=True)
class FileCall:
    """A call with its result."""

    position: int
    result: str
    is_error: bool

    @cached_property
    def is_done(self) -> bool:
        return is_done(self.result, is_error=self.is_error)

    def find_open_file(self) -> str | None:
        found = _OPEN_FILE.search(self.result[-_EDGE_CHARS:])
        return found.group(1) if found else None


def apply_actions(files: WrittenFiles, actions: Sequence[FileAction], call: FileCall) -> Iterator[FileChange]:
    """The changes that the call has made; `files` learns what it has written. Most calls change nothing."""
    for action in actions if actions and call.is_done else ():
        for change in _apply(files, action, call):
            yield replace(change, position=call.position)


def _apply(files: WrittenFiles, action: FileAction, call: FileCall) -> Iterator[FileChange]:
    if isinstance(action, ApplyPatch):
        yield from _patch(files, action.changes)
    elif isinstance(action, WriteFile):
        yield _write(files, action, call)
    elif (path := action.path or call.find_open_file()) is None:
        return
    elif isinstance(action, ReplaceTexts):
        diffs = [files.replace(path, each) for each in action.replacements]
        shown = [diff for diff, _ in diffs if diff is not None]
        change = make_change(path, "changed", _add_up(shown))
        if len(shown) < len(diffs) or not all(is_all for _, is_all in diffs):
            change = replace(change, additions=None, deletions=None)
        yield change
    elif isinstance(action, InsertLines):
        files.take(path)
        yield make_change(path, "changed", show_added(end_line(action.text), action.after_line))


def _add_up(diffs: Sequence[LineDiff]) -> LineDiff:
    return LineDiff(
        sum(diff.additions for diff in diffs),
        sum(diff.deletions for diff in diffs),
        "".join(diff.text for diff in diffs),
    )


def _patch(files: WrittenFiles, changes: Sequence[FileChange]) -> Iterator[FileChange]:
    """Of a patch that was applied as a whole."""
    for change in changes:
        known = files.take(change.path)
        if change.moved_from is not None:
            files.take(change.moved_from)
        if (text := read_created(change)) is not None:
            files.put(change.path, text)
        if change.kind == "deleted" and change.deletions is None and known is not None:
            change = replace(change, deletions=len(split_lines(known)))
        yield change


def _write(files: WrittenFiles, action: WriteFile, call: FileCall) -> FileChange:
    path, text, before = action.path, action.text, files.take(action.path)
    if text is None:
        is_empty = bool(_NEW_FILE.match(call.result))
        diff = show_added("\n") if is_empty else None
        is_new = is_empty or says_created(call.result)
        return make_change(call.find_open_file() or path, "created" if is_new else "changed", diff)
    files.put(path, text)
    if says_created(call.result):
        return make_change(path, "created", show_added(text))
    return make_change(path, "changed", files.compare(before, text, 1) if before is not None else None)
