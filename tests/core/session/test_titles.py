import pytest

from gateway.core.history.transcript import TranscriptEntry
from gateway.core.session.titles import LONGEST_TITLE_CHARS, find_asked, make_title, parse_title_reply


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("Fix the bug.\nIt is in a.py.", "Fix the bug."),
        ("<system-reminder>Rules</system-reminder>\n\n  Fix   it ", "Fix it"),
        ("<system-reminder>only rules</system-reminder>", ""),
        ("<task>\nFix it\n</task>\n<environment_details>\nfiles\n</environment_details>", "Fix it"),
        ("# AGENTS.md instructions for /app\n\n<INSTRUCTIONS>\nx\n</INSTRUCTIONS>", ""),
        ("<environment_context>\n<cwd>/app</cwd>\n</environment_context>", ""),
        ("[Request interrupted by user for tool use]", ""),
        ("<system-reminder>not closed. Fix it", "<system-reminder>not closed. Fix it"),
        ("<command-message>review</command-message>\n<command-name>/review</command-name>", "/review"),
        ("", ""),
    ],
)
def test_a_title_is_the_first_line_of_what_the_user_wrote(text: str, title: str) -> None:
    assert make_title(text) == title


def test_a_long_title_is_cut_at_a_word() -> None:
    title = make_title("word " * 60)
    assert title == "word " * 19 + "word" + "…"
    assert len(make_title("x" * 500)) == LONGEST_TITLE_CHARS


def test_results_beside_a_users_words_are_not_asked() -> None:
    words = TranscriptEntry("user", "Go on.", (), 0)
    entry = TranscriptEntry("tool", "result", (), 0, is_result=True, more=(words,))
    assert find_asked(entry) == "Go on."
    assert find_asked(TranscriptEntry("assistant", "Done.", (), 0)) == ""


@pytest.mark.parametrize(
    ("reply", "title"),
    [
        ("Fix the parser\n", "Fix the parser"),
        ('"Fix the parser"', "Fix the parser"),
        ("# **Fix the parser**", "Fix the parser"),
        ('```json\n{"title": "Fix the parser"}\n```', "Fix the parser"),
        ("<title>Fix the parser</title>", "Fix the parser"),
        ("<think>\nThe user wants a fix.\n</think>\n\nFix the parser", "Fix the parser"),
        ("", ""),
    ],
)
def test_the_title_in_a_reply(reply: str, title: str) -> None:
    assert parse_title_reply(reply) == title
