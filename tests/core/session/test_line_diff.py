import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.session.line_diff import count_lines, diff_fragments, diff_lines, split_lines

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


_LINE = st.sampled_from(["a", "b", ""])


@given(_LINE, _TEXT, _TEXT, _LINE, st.sampled_from(["", "a", "\0"]), st.sampled_from(["", "a", "\0"]))
def test_between_lines_that_stay_a_fragment_is_certain(
    first: str, old: str, new: str, last: str, before: str, after: str
) -> None:
    old, new = f"{first}\n{old}\n{last}", f"{first}\n{new}\n{last}"
    diff = diff_fragments(old, new)
    whole = diff_lines(f"{before}{old}{after}\n", f"{before}{new}{after}\n")
    assert diff is not None and whole is not None
    assert (diff.additions, diff.deletions) == (whole.additions, whole.deletions)


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("foo", "bar", (1, 1)),
        ("a\nb\nc", "a\nx\nc", (1, 1)),
        ("a\nb", "a\nb\nc", None),
        ("foo\n", "", None),
        ("a\nb\n", "a\nc\n", (1, 1)),
    ],
)
def test_a_replacement_in_an_unknown_file(old: str, new: str, counts: tuple[int, int] | None) -> None:
    diff = diff_fragments(old, new)
    assert (diff and (diff.additions, diff.deletions)) == counts


def test_hunks_say_where_they_are_if_that_is_known() -> None:
    old = "".join(f"{line}\n" for line in range(20))
    diff = diff_lines(old, old.replace("3\n", "", 1).replace("15\n", "x\ny\n"), 101)
    assert diff is not None
    assert [line for line in diff.text.split("\n") if line.startswith("@@")] == [
        "@@ -101,7 +101,6 @@",
        "@@ -113,7 +112,8 @@",
    ]


def test_hunks_without_a_place() -> None:
    diff = diff_lines("a\nb", "a\nc")
    assert diff is not None
    assert diff.text == "@@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n"
