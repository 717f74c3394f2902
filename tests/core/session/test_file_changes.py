import pytest

from gateway.core.session.edits import (
    ApplyPatch,
    ChangeNotebook,
    FileAction,
    InsertLines,
    ReadFile,
    ReplaceTexts,
    WriteFile,
)
from gateway.core.session.file_changes import FileCall, apply_actions
from gateway.core.session.known_files import KnownFiles
from gateway.core.session.patches import PatchedFile, Replacement
from gateway.core.session.work import FileChange

_DONE = "The file /f has been updated successfully."


def _apply(
    files: KnownFiles, action: FileAction, result: str = "ok", *, is_error: bool = False
) -> list[FileChange]:
    return list(apply_actions(files, [action], FileCall(3, result, is_error)))


def _counts(changes: list[FileChange]) -> list[tuple[str, str, int | None, int | None]]:
    return [(change.path, change.kind, change.additions, change.deletions) for change in changes]


def test_a_file_that_is_new_has_all_its_lines_added() -> None:
    created = _apply(KnownFiles(), WriteFile("/f", "a\nb\n"), "File created successfully at: /f")
    assert created == [
        FileChange(
            position=3, path="/f", kind="created", additions=2, deletions=0, diff="@@ -0,0 +1,2 @@\n+a\n+b\n"
        )
    ]


def test_a_file_that_was_not_there_when_it_was_read_is_new() -> None:
    files = KnownFiles()
    assert _apply(files, ReadFile("/f", is_part=False), "Error: /f does not exist") == []
    assert _counts(_apply(files, WriteFile("/f", "a\n"))) == [("/f", "created", 1, 0)]


def test_a_file_that_is_written_over_is_compared_with_what_it_held() -> None:
    files = KnownFiles()
    assert _counts(_apply(files, WriteFile("/f", "a\nb\n"))) == [("/f", "changed", None, None)]
    assert _counts(_apply(files, WriteFile("/f", "a\nc\nd\n"))) == [("/f", "changed", 2, 1)]
    files.doubt()
    assert _counts(_apply(files, WriteFile("/f", "a\n"))) == [("/f", "changed", None, None)]


def test_an_agent_that_checks_what_it_read_before_it_writes_is_believed() -> None:
    files = KnownFiles()
    _apply(files, ReadFile("/f", is_part=False), "     1→a\n     2→b\n     3→")
    files.doubt()
    assert _counts(_apply(files, WriteFile("/f", "a\n"), _DONE)) == [("/f", "changed", 0, 1)]


def test_an_error_changes_nothing() -> None:
    files = KnownFiles()
    assert _apply(files, WriteFile("/f", "a\n"), is_error=True) == []
    assert files.find_whole("/f", is_checked=True) is None


@pytest.mark.parametrize(
    ("shown", "counts"),
    [
        ("     1→x\n     2→foo\n     3→", (2, 1)),  # inside of a line
        ("     1→x\n     2→fo\n     3→", (1, 0)),
        ("     1→other\n     2→", (None, None)),
    ],
)
def test_what_was_read_tells_how_many_lines_a_replacement_touches(
    shown: str, counts: tuple[int, int]
) -> None:
    files = KnownFiles()
    _apply(files, ReadFile("/f", is_part=False), shown)
    change = _apply(files, ReplaceTexts("/f", (Replacement("fo", "fo\nba"),)), _DONE)
    assert _counts(change) == [("/f", "changed", *counts)]
    assert change[0].diff


def test_a_replacement_everywhere_in_a_file_that_is_not_known_has_no_numbers() -> None:
    everywhere = ReplaceTexts("/f", (Replacement("a", "b", is_everywhere=True),))
    assert _counts(_apply(KnownFiles(), everywhere)) == [("/f", "changed", None, None)]
    files = KnownFiles()
    files.put_whole("/f", "a\nx\na a\n")
    assert _counts(_apply(files, everywhere)) == [("/f", "changed", 2, 2)]


def test_several_replacements_are_one_change() -> None:
    action = ReplaceTexts("/f", (Replacement("a", "b"), Replacement("c\n", "c\nd\n", is_everywhere=False)))
    files = KnownFiles()
    files.put_whole("/f", "a\nx\ny\nz\nu\nv\nw\nc\n")
    (change,) = _apply(files, action, _DONE)
    assert (change.additions, change.deletions) == (2, 1)
    assert change.diff.count("@@ -") == 2


def test_whole_lines_need_no_file() -> None:
    action = ReplaceTexts("/f", (Replacement("a\n", "a\nb\n"),), has_whole_lines=True)
    assert _counts(_apply(KnownFiles(), action)) == [("/f", "changed", 1, 0)]


def test_the_tools_of_swe_agent_name_the_file_in_the_result() -> None:
    opened = "(Open file: /a/b.py)\n(Current directory: /a)\nbash-$"
    result = f"Text replaced. Please review the changes\r\n[File: b.py (10 lines total)]\r\n1:x\n{opened}"
    assert _counts(_apply(KnownFiles(), ReplaceTexts(None, (Replacement("a", "b"),)), result)) == [
        ("/a/b.py", "changed", 1, 1)
    ]
    inserted = _apply(
        KnownFiles(), InsertLines(None, "a\nb", None), f"[File: b.py (10 lines total)]\r\n1:x\n{opened}"
    )
    assert _counts(inserted) == [("/a/b.py", "changed", 2, 0)]
    made = _apply(KnownFiles(), WriteFile("b.py", None), f"[File: b.py (1 lines total)]\r\n1:\n{opened}")
    assert _counts(made) == [("/a/b.py", "created", 1, 0)]
    assert _apply(KnownFiles(), ReplaceTexts(None, (Replacement("a", "b"),)), "ok") == []


def test_a_patch_moves_creates_and_deletes() -> None:
    files = KnownFiles()
    files.put_whole("gone", "a\nb\n")
    patched = (
        PatchedFile("new", "created", 1, 0, "@@ -0,0 +1 @@\n+a\n", text="a\n"),
        PatchedFile("gone", "deleted", None, None, ""),
        PatchedFile("lost", "deleted", None, None, ""),
        PatchedFile("to", "moved", 0, 0, "", moved_from="from"),
    )
    changes = _apply(files, ApplyPatch(patched))
    assert _counts(changes) == [
        ("new", "created", 1, 0),
        ("gone", "deleted", 0, 2),
        ("lost", "deleted", 0, None),
        ("to", "moved", 0, 0),
    ]
    assert changes[-1].moved_from == "from"
    assert files.find_whole("new", is_checked=False) == "a\n"


def test_cells_are_not_counted_in_lines() -> None:
    assert _counts(_apply(KnownFiles(), ChangeNotebook("/f"))) == [("/f", "changed", None, None)]
