"""How many lines a call adds to a file and deletes, and what is known of files."""

import difflib
import json
import re
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.session.edits import ApplyPatch, FileAction, ReadFile, ReplaceTexts, WriteFile
from gateway.core.session.file_changes import FileCall, apply_actions
from gateway.core.session.known_files import KnownFiles
from gateway.core.session.line_diff import count_lines, diff_fragments, diff_lines, split_lines
from gateway.core.session.line_matching import match_lines
from gateway.core.session.patches import PatchedFile, Replacement, parse_unified_diff
from gateway.core.session.work import FileChange
from gateway.core.session.written_calls import WrittenCall, begins_anew, find_written_results, without_results

_DONE = "The file /f has been updated successfully."


def _apply(
    files: KnownFiles, action: FileAction, result: str = "ok", *, is_error: bool = False
) -> list[FileChange]:
    return list(apply_actions(files, [action], FileCall(3, result, is_error)))


def _counts(changes: list[FileChange]) -> list[tuple[str, str, int | None, int | None]]:
    return [(change.path, change.kind, change.additions, change.deletions) for change in changes]


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


def test_a_replacement_everywhere_in_a_file_that_is_not_known_has_no_numbers() -> None:
    everywhere = ReplaceTexts("/f", (Replacement("a", "b", is_everywhere=True),))
    assert _counts(_apply(KnownFiles(), everywhere)) == [("/f", "changed", None, None)]
    files = KnownFiles()
    files.put_whole("/f", "a\nx\na a\n")
    assert _counts(_apply(files, everywhere)) == [("/f", "changed", 2, 2)]


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


_LINES = st.lists(st.sampled_from(["a", "b", "c", "aa", ""]), min_size=1, max_size=12)


@given(_LINES, st.data(), st.text("abc\n", max_size=8), st.booleans())
def test_a_replacement_in_a_known_file_is_counted_as_if_the_whole_file_was_compared(
    lines: list[str], data: st.DataObject, new: str, is_everywhere: bool
) -> None:
    text = "\n".join(lines)
    start = data.draw(st.integers(0, len(text)))
    old = text[start : data.draw(st.integers(start, len(text)))]
    if not old:
        return
    files = KnownFiles()
    files.put_whole("f", text)
    diff = files.replace("f", Replacement(old, new, is_everywhere))
    if text.count(old) > 1 and not is_everywhere:
        assert diff is None
        assert files.find_whole("f", is_checked=True) is None
        return
    changed = text.replace(old, new)
    assert diff == diff_lines(text, changed, 1) or is_everywhere
    whole = diff_lines(text, changed)
    assert diff is not None
    assert whole is not None
    assert (diff.additions, diff.deletions) == (whole.additions, whole.deletions)
    assert files.find_whole("f", is_checked=False) == changed


def test_a_part_tells_how_the_lines_around_a_replacement_go_on() -> None:
    files = KnownFiles()
    files.put_part("f", "x = [\n    1, 2]\n")
    diff = files.replace("f", Replacement("1", "1,\n    3"))
    assert diff is not None
    assert (diff.additions, diff.deletions) == (2, 1)
    assert diff.text.startswith("@@\n")
    assert files.replace("g", Replacement("1", "2")) is None


def test_what_any_command_may_have_changed_is_not_certain() -> None:
    files = KnownFiles()
    files.put_whole("f", "a\n")
    files.put_absent("g")
    files.doubt()
    assert files.find_whole("f", is_checked=False) is None
    assert files.find_whole("f", is_checked=True) == "a\n"
    assert not files.absent


_TEXT = st.lists(
    st.sampled_from(["a", "b", "c", "", "+x", "-y", "@@", "\\", "d\r", "e\x0c", "f\u2028g"]), max_size=40
).flatmap(lambda lines: st.sampled_from(["\n".join(lines), "".join(f"{line}\n" for line in lines)]))


_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def apply_hunks(old: str, diff: str) -> str:
    """What `patch` makes of a text: written apart from what is tested."""
    lines, made, at = split_lines(old), list[str](), 0
    shown = diff.split("\n")
    while shown and shown[0]:
        hunk = _HUNK.fullmatch(shown.pop(0))
        assert hunk, diff
        start, count = int(hunk[1]), int(hunk[2] or 1) if hunk[2] != "0" else 0
        start = start - 1 if count else start
        made += lines[at:start]
        at = start
        left, right = count, 0 if hunk[4] == "0" else int(hunk[4] or 1)
        while left or right:
            mark, text = shown[0][:1], shown.pop(0)[1:]
            has_end = not (shown and shown[0].startswith("\\ No newline"))
            if not has_end:
                shown.pop(0)
            line = text + ("\n" if has_end else "")
            if mark in " -":
                assert lines[at] == line
                at, left = at + 1, left - 1
            if mark in " +":
                made.append(line)
                right -= 1
    return "".join([*made, *lines[at:]])


@given(_TEXT, _TEXT)
def test_a_diff_makes_the_new_text_of_the_old_one(old: str, new: str) -> None:
    diff = diff_lines(old, new, 1)
    assert diff is not None
    assert apply_hunks(old, diff.text) == new
    shown = [line for line in diff.text.split("\n") if line and not _HUNK.fullmatch(line)]
    assert diff.additions == sum(line.startswith("+") for line in shown)
    assert diff.deletions == sum(line.startswith("-") for line in shown)
    assert count_lines(new) - count_lines(old) == diff.additions - diff.deletions


@given(_TEXT, _TEXT, _TEXT, _TEXT)
def test_what_is_certain_of_a_fragment_is_so_in_every_file(
    old: str, new: str, before: str, after: str
) -> None:
    diff = diff_fragments(old, new)
    assume(diff is not None)
    whole = diff_lines(f"{before}{old}{after}\n", f"{before}{new}{after}\n")
    assert diff is not None
    assert whole is not None
    # A file may hold lines around the place that are the same as the new ones: then a shorter diff exists.
    assert (whole.additions, whole.deletions) <= (diff.additions, diff.deletions)
    assert whole.additions - whole.deletions == diff.additions - diff.deletions


def test_hunks_say_where_they_are_if_that_is_known() -> None:
    old = "".join(f"{line}\n" for line in range(20))
    diff = diff_lines(old, old.replace("3\n", "", 1).replace("15\n", "x\ny\n"), 101)
    assert diff is not None
    assert [line for line in diff.text.split("\n") if line.startswith("@@")] == [
        "@@ -101,7 +101,6 @@",
        "@@ -113,7 +112,8 @@",
    ]


_LINES_OF_LINE_MATCHING = st.lists(st.sampled_from("abcde"), max_size=14)


def _count_common(old: list[str], new: list[str]) -> int:
    """The length of a longest common subsequence, by the table of the textbook."""
    table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, one in enumerate(old):
        for j, other in enumerate(new):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(_LINES_OF_LINE_MATCHING, _LINES_OF_LINE_MATCHING)
def test_as_many_lines_match_as_can(old: list[str], new: list[str]) -> None:
    pairs = match_lines(old, new)
    assert pairs is not None
    assert len(pairs) == _count_common(old, new)
    assert all(old[i] == new[j] for i, j in pairs)
    assert all(before[0] < after[0] and before[1] < after[1] for before, after in pairwise(pairs))


_LINES_OF_PATCHES = st.lists(
    st.sampled_from(["a", "b", "", "-- x", "++ y", "@@ -1 +1 @@"]), min_size=1, max_size=20
)


@given(_LINES_OF_PATCHES, _LINES_OF_PATCHES)
def test_a_unified_diff_is_counted_as_it_was_made(old: list[str], new: list[str]) -> None:
    lines = list(difflib.unified_diff(old, new, "a/f", "b/f", lineterm=""))
    parsed = parse_unified_diff("\n".join(lines) + "\n")
    if not lines:
        assert parsed is None
        return
    hunks = [
        line for line in lines[2:] if not (line.startswith("@@") and line.endswith("@@") and " +" in line)
    ]
    assert parsed is not None
    (file,) = parsed
    assert file.path == "f"
    assert file.additions is not None
    assert file.deletions is not None
    assert file.additions - file.deletions == len(new) - len(old)
    assert file.additions >= sum(line.startswith("+") for line in hunks)


def _call(tool: str, *, needs_result: bool = True, **fields: str) -> WrittenCall:
    return WrittenCall(tool, json.dumps(fields), needs_result)


def test_results_in_the_next_message_of_the_user() -> None:
    run, edit = _call("execute_command", command="ls"), _call("replace_in_file", needs_result=False)
    told = "[execute_command for 'ls'] Result:\nCommand executed."
    assert find_written_results(told, [run]) == ["Command executed."]
    assert find_written_results("Why did you stop?", [run]) == [None]
    assert find_written_results("Thanks. Now the failing test.", [edit]) == [""]
    assert find_written_results("# 1 SEARCH/REPLACE block failed to match!\n", [edit]) == [None]


def test_each_result_answers_one_call_of_its_tool() -> None:
    run, read = _call("execute_command", command="ls"), _call("read_file", path="a")
    told = (
        "[read_file for 'a'] Result:\nx\n[execute_command for 'ls'] Result:\ny\n"
        "[read_file for 'b'] Result:\nz"
    )
    assert find_written_results(told, [run, read, read, read]) == ["y\n", "x\n", "z", None]


def test_what_the_user_wrote_beside_results() -> None:
    assert without_results("Fix it.") == "Fix it."
    assert without_results("[read_file for 'a'] Result:\nx") == ""
    told = "[execute_command for 'ls'] Result:\nThe user denied it.\n<feedback>\nUse find.\n</feedback>"
    assert without_results(told) == "Use find."
    assert begins_anew("I switched to a new code base. Please don't consider the above files")
