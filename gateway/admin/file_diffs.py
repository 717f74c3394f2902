"""The changes of a session, file by file. Values in, values out."""

from collections.abc import Sequence
from typing import Final

from gateway.admin.session_answers import FileDiff
from gateway.core.session.work import FileChange, list_touched_files

_NOTHING: Final = "/dev/null"
_NO_NEWLINE: Final = "\\ No newline at end of file\n"


def list_file_diffs(changes: Sequence[FileChange]) -> list[FileDiff]:
    """In the order of the first changes. A file that was moved is one file, under its last name."""
    groups: dict[str, list[FileChange]] = {}
    for change in changes:
        moved = groups.pop(change.moved_from, None) if change.moved_from is not None else None
        groups[change.path] = [*groups.get(change.path, moved or []), change]
    return [make_file_diff(group) for group in groups.values()]


def make_file_diff(changes: Sequence[FileChange]) -> FileDiff:
    """changes: of one file, in order; at least one."""
    (touched,) = list_touched_files(changes)[-1:]
    first, last = changes[0], changes[-1]
    return FileDiff(
        file=touched.path,
        kind=touched.kind,
        moved_from=touched.moved_from,
        before="" if first.kind == "created" else None,
        after=_find_after(last),
        additions=touched.additions,
        deletions=touched.deletions,
        unknown=touched.unknown,
        messages=list(dict.fromkeys(change.position for change in changes)),
        diff=_make_header(first, last) + "".join(change.diff for change in changes),
    )


def _find_after(change: FileChange) -> str | None:
    """What the file held after a change that created or deleted it."""
    if change.kind == "deleted":
        return ""
    if change.kind != "created":
        return None
    lines = change.diff.splitlines(keepends=True)
    added = [line[1:] for line in lines if line.startswith("+")]
    if change.additions is None or len(added) != change.additions:
        # It is too long to be kept.
        return None
    text = "".join(added)
    return text.removesuffix("\n") if lines and lines[-1] == _NO_NEWLINE else text


def _make_header(first: FileChange, last: FileChange) -> str:
    before = first.moved_from or first.path
    old = _NOTHING if first.kind == "created" else f"a/{before.lstrip('/')}"
    new = _NOTHING if last.kind == "deleted" else f"b/{last.path.lstrip('/')}"
    return f"--- {_on_one_line(old)}\n+++ {_on_one_line(new)}\n"


def _on_one_line(path: str) -> str:
    return "".join(each if each.isprintable() else "�" for each in path)
