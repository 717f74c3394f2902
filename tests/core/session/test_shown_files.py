"""What readers of several agents show of a file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.session.shown_files import ShownText, parse_shown


@pytest.mark.parametrize(
    ("result", "text", "is_numbered", "is_complete"),
    [
        # Claude Code numbers the empty text behind the last newline.
        ("     1→a\n     2→\tb\n     3→", "a\n\tb\n", True, True),
        ("     1→a\n     2→b", "a\nb", True, True),
        ("     1→a\n\n<system-reminder>\nrules\n</system-reminder>\n", "a", True, True),
        ("     7→a\n     8→b", "a\nb", True, False),
        ("Here's the result of running `cat -n` on /f:\n     1\ta\n     2\tb\n", "a\nb\n", True, True),
        ("<file>\n00001| a\n00002| b\n(End of file - total 2 lines)\n</file>", "a\nb\n", True, True),
        (
            "<path>f</path>\n<content>\n1: a\n2: b\n\n(End of file - total 2 lines)\n</content>",
            "a\nb\n",
            True,
            True,
        ),
        ("     1→a\n[... truncated ...]", "a", True, False),
        ("a\nb\n", "a\nb\n", False, False),
        ("<content>\n1 | a\n2 | b\n</content>", "a\nb\n", True, True),
        ("1: a\nnot numbered\n", "a\n", True, False),
    ],
)
def test_what_readers_show(result: str, text: str, *, is_numbered: bool, is_complete: bool) -> None:
    shown = parse_shown(result)
    first = 7 if result.startswith("     7") else 1
    assert shown == ShownText(text, is_numbered, first, is_complete)


@given(
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=20).flatmap(
        lambda word: st.lists(st.sampled_from([word, "", "  x", "1: y", "→"]), min_size=1, max_size=20)
    )
)
def test_a_file_comes_back_from_its_numbered_lines(lines: list[str]) -> None:
    shown = "\n".join(f"{number:6}→{line}" for number, line in enumerate(lines, 1))
    parsed = parse_shown(shown)
    assert (parsed.text, parsed.is_numbered, parsed.first_line) == ("\n".join(lines), True, 1)


@pytest.mark.parametrize(
    "hostile", ["<file>\n", "<system-reminder>", "\n", "1: ", "</system-reminder>", "<content>\n"]
)
def test_a_megabyte_of_anything_is_read(hostile: str) -> None:
    text = hostile * (1_000_000 // len(hostile))
    assert len(parse_shown(text).text) <= len(text) + 1
