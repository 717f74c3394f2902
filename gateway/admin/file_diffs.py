"""The changes of a session, file by file. Values in, values out."""

from collections.abc import Sequence
from typing import Final

from gateway.admin.answers import FileDiff
from gateway.core.session.patches import read_created
from gateway.core.session.work import FileChange, list_touched_files

_NOTHING: Final = "/dev/null"


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
        after="" if last.kind == "deleted" else read_created(last),
        additions=touched.additions,
        deletions=touched.deletions,
        unknown=touched.unknown,
        messages=list(dict.fromkeys(change.position for change in changes)),
        diff=_make_header(first, last) + "".join(change.diff for change in changes),
    )


def _make_header(first: FileChange, last: FileChange) -> str:
    before = first.moved_from or first.path
    old = _NOTHING if first.kind == "created" else f"a/{before.lstrip('/')}"
    new = _NOTHING if last.kind == "deleted" else f"b/{last.path.lstrip('/')}"
    return f"--- {_on_one_line(old)}\n+++ {_on_one_line(new)}\n"


def _on_one_line(path: str) -> str:
    return "".join(each if each.isprintable() else "�" for each in path)
