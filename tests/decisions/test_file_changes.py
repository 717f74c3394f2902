"""How many lines a call adds to a file and deletes, and what is known of files."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.session.edits import FileAction, ReadFile, WriteFile
from gateway.core.session.file_changes import FileCall, apply_actions
from gateway.core.session.known_files import KnownFiles
from gateway.core.session.line_diff import count_lines, diff_lines, split_lines
from gateway.core.session.patches import Replacement
from gateway.core.session.work import FileChange
from gateway.core.session.written_calls import WrittenCall, begins_anew, find_written_results, without_results


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


def _call(tool: str, *, needs_result: bool = True, **fields: str) -> WrittenCall:
    return WrittenCall(tool, json.dumps(fields), needs_result)


def test_results_in_the_next_message_of_the_user() -> None:
    run, edit = _call("execute_command", command="ls"), _call("replace_in_file", needs_result=False)
    told = "[execute_command for 'ls'] Result:\nCommand executed."
    assert find_written_results(told, [run]) == ["Command executed."]
    assert find_written_results("Why did you stop?", [run]) == [None]
    assert find_written_results("Thanks. Now the failing test.", [edit]) == [""]
    assert find_written_results("# 1 SEARCH/REPLACE block failed to match!\n", [edit]) == [None]


def test_what_the_user_wrote_beside_results() -> None:
    assert without_results("Fix it.") == "Fix it."
    assert without_results("[read_file for 'a'] Result:\nx") == ""
    told = "[execute_command for 'ls'] Result:\nThe user denied it.\n<feedback>\nUse find.\n</feedback>"
    assert without_results(told) == "Use find."
    assert begins_anew("I switched to a new code base. Please don't consider the above files")
