"""Changes of files out of what calls would do and what their results say, with the lines they added and
deleted.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.session.edits import (
    ApplyPatch,
    ChangeNotebook,
    FileAction,
    InsertLines,
    ReadFile,
    ReplaceTexts,
    WriteFile,
)
from gateway.core.session.known_files import KnownFiles
from gateway.core.session.line_diff import LineDiff, count_lines, diff_fragments, diff_lines
from gateway.core.session.outcomes import is_done, is_failed, says_created
from gateway.core.session.patches import PatchedFile, Replacement
from gateway.core.session.shown_files import parse_shown
from gateway.core.session.work import ChangeKind, FileChange

# SWE-agent: the tools have no path; their results name the open file.
_OPEN_FILE: Final = re.compile(r"\(Open file: (/[^\n]*)\)\s*\n\(Current directory: ")
# What a file that it makes holds at first.
_NEW_FILE: Final = re.compile(r"\A\[File: [^\n]*? \(1 lines total\)\]\r?\n1:\s*\n\(Open file: ")
# Claude Code writes only over what it has read and what has not changed since.
_CHECKED: Final = re.compile(r"The file .{1,1000}? has been updated")
_ABSENT: Final = re.compile(r"does not exist|no such file|not found|ENOENT", re.IGNORECASE)
_EDGE_CHARS: Final = 1_200
# Lines of the texts of one call. Beyond, it is not told what the call did.
_MOST_LINES: Final = 10_000


@dataclass(frozen=True, slots=True)
class FileCall:
    """A call with its result. is_compared: what it did is counted in lines, which may take long."""

    position: int
    result: str
    is_error: bool
    is_compared: bool = True

    @property
    def is_done(self) -> bool:
        return is_done(self.result, is_error=self.is_error)


def apply_actions(files: KnownFiles, actions: Sequence[FileAction], call: FileCall) -> Iterator[FileChange]:
    """The changes that the call has made; `files` learns what it has read and written."""
    for action in actions:
        if isinstance(action, ReadFile):
            _learn(files, action, call)
        elif not call.is_done:
            continue
        elif isinstance(action, ApplyPatch):
            yield from apply_patch(files, action.files, call.position)
        elif isinstance(action, WriteFile):
            yield _write(files, action, call)
        elif isinstance(action, ChangeNotebook):
            files.forget(action.path)
            yield _make(call, action.path, "changed", None)
        elif (path := action.path or _find_open_file(call)) is not None:
            yield (
                _replace(files, action, path, call)
                if isinstance(action, ReplaceTexts)
                else _insert(files, action, path, call)
            )


def apply_patch(files: KnownFiles, patched: Sequence[PatchedFile], position: int) -> Iterator[FileChange]:
    """The changes of a patch that was applied as a whole."""
    for each in patched:
        deletions = each.deletions
        if each.kind == "deleted" and deletions is None:
            known = files.find_whole(each.path, is_checked=False)
            deletions = count_lines(known) if known is not None else None
        files.forget(each.path)
        if each.moved_from is not None:
            files.forget(each.moved_from)
        if each.text is not None:
            files.put_whole(each.path, each.text)
        yield FileChange(
            position=position,
            path=each.path,
            kind=each.kind,
            additions=0 if each.kind == "deleted" else each.additions,
            deletions=deletions,
            diff=each.diff,
            moved_from=each.moved_from,
        )


def _learn(files: KnownFiles, action: ReadFile, call: FileCall) -> None:
    if is_failed(call.result, is_error=call.is_error):
        if _ABSENT.search(call.result[:_EDGE_CHARS]):
            files.put_absent(action.path)
        return
    shown = parse_shown(call.result)
    if shown.is_numbered and shown.is_complete and not action.is_part:
        files.put_whole(action.path, shown.text)
    elif shown.text:
        files.put_part(action.path, shown.text if shown.text.endswith("\n") else shown.text + "\n")


def _find_open_file(call: FileCall) -> str | None:
    found = _OPEN_FILE.search(call.result[-_EDGE_CHARS:])
    return found.group(1) if found else None


def _make(call: FileCall, path: str, kind: ChangeKind, diff: LineDiff | None, text: str = "") -> FileChange:
    return FileChange(
        position=call.position,
        path=path,
        kind=kind,
        additions=diff.additions if diff else None,
        deletions=diff.deletions if diff else None,
        diff=diff.text if diff else text,
    )


def _write(files: KnownFiles, action: WriteFile, call: FileCall) -> FileChange:
    path, text = action.path, action.text
    is_new = says_created(call.result) or path in files.absent
    is_checked = bool(_CHECKED.search(call.result[:_EDGE_CHARS]))
    before = files.find_whole(path, is_checked=is_checked) if call.is_compared else None
    files.forget(path)
    if text is None:
        is_empty = bool(_NEW_FILE.match(call.result))
        diff = diff_lines("", "\n", 1) if is_empty else None
        return _make(
            call, _find_open_file(call) or path, "created" if is_empty or is_new else "changed", diff
        )
    files.put_whole(path, text)
    if is_new:
        return _make(call, path, "created", diff_lines("", text, 1))
    return _make(call, path, "changed", diff_lines(before, text, 1) if before is not None else None)


def _replace(files: KnownFiles, action: ReplaceTexts, path: str, call: FileCall) -> FileChange:
    is_checked = bool(_CHECKED.search(call.result[:_EDGE_CHARS]))
    texts = (text for each in action.replacements for text in (each.old, each.new))
    if not call.is_compared or sum(text.count("\n") + 1 for text in texts) > _MOST_LINES:
        files.forget(path)
        return _make(call, path, "changed", None)
    diffs = [_replace_one(files, action, path, each, is_checked=is_checked) for each in action.replacements]
    text = "".join(shown for _, shown in diffs)
    known = [diff for diff, _ in diffs if diff is not None]
    if len(known) < len(diffs):
        return _make(call, path, "changed", None, text)
    additions, deletions = sum(diff.additions for diff in known), sum(diff.deletions for diff in known)
    return _make(call, path, "changed", LineDiff(additions, deletions, text))


def _replace_one(
    files: KnownFiles, action: ReplaceTexts, path: str, replacement: Replacement, *, is_checked: bool
) -> tuple[LineDiff | None, str]:
    """The difference, if it is known, and a text that shows it."""
    old, new = replacement.old, replacement.new
    if action.has_whole_lines:
        files.forget(path)
        diff = diff_lines(old, new)
        return diff, diff.text if diff else ""
    diff = files.replace(path, replacement, is_checked=is_checked)
    if diff is None and not replacement.is_everywhere:
        diff = diff_fragments(old, new)
    if diff is not None:
        return diff, diff.text
    shown = diff_lines(old if old.endswith("\n") else old + "\n", new if new.endswith("\n") else new + "\n")
    return None, shown.text if shown else ""


def _insert(files: KnownFiles, action: InsertLines, path: str, call: FileCall) -> FileChange:
    """Lines put in between two lines."""
    files.forget(path)
    text = action.text if action.text.endswith("\n") else action.text + "\n"
    first = action.after_line + 1 if action.after_line is not None else None
    diff = diff_lines("", text, first)
    return _make(call, path, "changed", diff)
