from gateway.core.session.work import ChangeKind, FileChange, TouchedFile, list_touched_files


def _change(
    path: str, kind: ChangeKind, counts: tuple[int, int] | None, moved_from: str | None = None
) -> FileChange:
    additions, deletions = counts or (None, None)
    return FileChange(
        position=0, path=path, kind=kind, additions=additions, deletions=deletions, moved_from=moved_from
    )


def _file(path: str, kind: ChangeKind, *numbers: int, moved_from: str | None = None) -> TouchedFile:
    changes, additions, deletions, unknown = numbers
    return TouchedFile(
        path=path,
        kind=kind,
        changes=changes,
        additions=additions,
        deletions=deletions,
        unknown=unknown,
        moved_from=moved_from,
    )


def test_changes_of_a_file_are_added_up_and_unknown_ones_counted() -> None:
    changes = [
        _change("a", "changed", (2, 1)),
        _change("b", "created", (10, 0)),
        _change("a", "changed", None),
        _change("b", "changed", (1, 4)),
    ]
    assert list_touched_files(changes) == (
        _file("a", "changed", 2, 2, 1, 1),
        _file("b", "created", 2, 11, 4, 0),
    )


def test_a_file_is_listed_under_its_last_name() -> None:
    moved = [
        _change("a", "changed", (2, 1)),
        _change("b", "moved", (0, 0), "a"),
        _change("b", "changed", (1, 0)),
    ]
    assert list_touched_files(moved) == (_file("b", "moved", 3, 3, 1, 0, moved_from="a"),)


def test_a_file_that_is_gone_is_deleted_and_made_again_created() -> None:
    gone = [_change("a", "created", (2, 0)), _change("a", "deleted", (0, 2))]
    assert [file.kind for file in list_touched_files(gone)] == ["deleted"]
    assert [file.kind for file in list_touched_files([*gone, _change("a", "created", (1, 0))])] == ["created"]
