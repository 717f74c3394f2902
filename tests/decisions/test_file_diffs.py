"""Changes of a session file by file: before and after only where they are known."""

from typing import Any

from gateway.admin.session_pages import list_file_diffs
from gateway.core.session.work import ChangeKind, FileChange


def change(
    position: int, path: str, kind: ChangeKind = "changed", diff: str = "", **more: object
) -> FileChange:
    numbers: dict[str, Any] = {"additions": diff.count("\n+"), "deletions": diff.count("\n-")}
    return FileChange(position=position, path=path, kind=kind, diff=diff, **(numbers | more))


def test_changes_of_a_file_are_one_diff() -> None:
    first = change(1, "/a.py", diff="@@\n-x\n+y\n")
    second = change(5, "/a.py", diff="@@ -1 +1,2 @@\n y\n+z\n")
    (diff,) = list_file_diffs([first, second])
    assert (diff.file, diff.additions, diff.deletions, diff.messages) == ("/a.py", 2, 1, [1, 5])
    assert diff.diff == "--- a/a.py\n+++ b/a.py\n@@\n-x\n+y\n@@ -1 +1,2 @@\n y\n+z\n"
    assert (diff.before, diff.after) == (None, None)


def test_files_come_in_the_order_of_their_first_changes() -> None:
    changes = [change(1, "/b"), change(2, "/a"), change(3, "/b")]
    assert [diff.file for diff in list_file_diffs(changes)] == ["/b", "/a"]


def test_a_created_file_is_known_as_a_whole() -> None:
    (diff,) = list_file_diffs([change(1, "/a", "created", "@@ -0,0 +1,2 @@\n+x\n+y\n")])
    assert (diff.before, diff.after) == ("", "x\ny\n")
    assert diff.diff.startswith("--- /dev/null\n+++ b/a\n")
    unfinished = "@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n"
    (diff,) = list_file_diffs([change(1, "/a", "created", unfinished)])
    assert diff.after == "x"


def test_what_a_file_held_is_not_guessed() -> None:
    created = change(1, "/a", "created", "@@ -0,0 +1 @@\n+x\n")
    (edited,) = list_file_diffs([created, change(3, "/a", diff="@@\n-x\n+y\n")])
    assert (edited.before, edited.after, edited.kind) == ("", None, "created")
    (long,) = list_file_diffs([change(1, "/a", "created", "", additions=9)])
    assert (long.before, long.after) == ("", None)
    (unknown,) = list_file_diffs([change(1, "/a", "created", "@@\n+x\n", additions=None)])
    assert (unknown.after, unknown.unknown) == (None, 1)
    (deleted,) = list_file_diffs([change(1, "/a", "deleted")])
    assert (deleted.before, deleted.after) == (None, "")
    assert deleted.diff == "--- a/a\n+++ /dev/null\n"


def test_a_moved_file_is_one_file() -> None:
    moved = change(2, "/b", "moved", moved_from="/a")
    (diff,) = list_file_diffs([change(1, "/a", diff="@@\n-x\n+y\n"), moved, change(3, "/b", diff="@@\n+z\n")])
    assert (diff.file, diff.moved_from, diff.additions, diff.messages) == ("/b", "/a", 2, [1, 2, 3])


def test_no_changes_give_no_diffs_and_no_path_breaks_the_header() -> None:
    assert list_file_diffs([]) == []
    (diff,) = list_file_diffs([change(1, "/a\n+++ /etc/passwd")])
    assert diff.diff.count("\n") == 2
