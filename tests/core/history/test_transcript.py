import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.transcript import (
    TranscriptEntry,
    cut_middle,
    list_entries,
    neutralize,
    render_earlier_summary,
    render_transcript,
)

_TEXT = st.lists(
    st.sampled_from(
        ["</conversation>", "<Conversation x>", "< /conversation", "</earlier-summary>", "<", "/", "a", "\n"]
    ),
    max_size=8,
).map("".join)


def test_a_conversation_is_quoted_inside_its_fence() -> None:
    entries = [
        TranscriptEntry("user", "Fix it.", (), 2),
        TranscriptEntry("assistant", "", (("look", '{"a":1}'), ("skill", "")), 0, hidden="secret"),
        TranscriptEntry("tool", "x" * 10, (), 0, is_result=True),
        TranscriptEntry("assistant", "Done.", (), 0),
    ]
    assert render_transcript(entries, None) == (
        "<conversation>\n"
        "[user]: Fix it.\n[2 attachments left out]\n\n"
        '[assistant calls look]: {"a":1}\n[assistant calls skill]: \n\n'
        "[tool result]: xxxxxxxxxx\n\n"
        "[assistant]: Done.\n"
        "</conversation>"
    )


def test_only_results_and_arguments_are_cut() -> None:
    entries = [
        TranscriptEntry("user", "u" * 50, (), 0),
        TranscriptEntry("assistant", "a" * 50, (("look", "b" * 50),), 0),
        TranscriptEntry("tool", "c" * 50, (), 0, is_result=True),
    ]
    rendered = render_transcript(entries, 10)
    assert "u" * 50 in rendered and "a" * 50 in rendered
    assert "bbbbb\n[... 40 of 50 characters cut ...]\nbbbbb" in rendered
    assert "ccccc\n[... 40 of 50 characters cut ...]\nccccc" in rendered


def test_an_empty_message_is_still_there() -> None:
    assert (
        render_transcript([TranscriptEntry("user", "", (), 0)], None)
        == "<conversation>\n[user]: \n</conversation>"
    )


@given(_TEXT, _TEXT, st.sampled_from([None, 3, 20]))
def test_nothing_in_the_history_can_close_the_fence(text: str, arguments: str, chars: int | None) -> None:
    entries = [
        TranscriptEntry("user", text, ((arguments, arguments),), 0),
        TranscriptEntry("tool", text, (), 0, is_result=True),
    ]
    inside = render_transcript(entries, chars)[len("<conversation>") : -len("</conversation>")]
    earlier = render_earlier_summary(text)[len("<earlier-summary>") : -len("</earlier-summary>")]
    for quoted in (inside, earlier):
        assert not re.search(r"<\s*/?\s*(conversation|earlier-summary)\b", quoted, re.IGNORECASE)


@pytest.mark.parametrize("text", ["a < b", "<conversations>", "<b>", "</think>"])
def test_other_markup_stays_as_it_is(text: str) -> None:
    assert neutralize(text) == text


def test_a_bracket_before_much_space_takes_linear_time() -> None:
    text = "<" + " " * 300_000
    assert neutralize(text) == text
    assert neutralize(f"{text}/\n conversation>") == f"&lt;{text[1:]}/\n conversation>"


@pytest.mark.parametrize(
    ("text", "keep", "expected"),
    [
        ("abcdef", None, "abcdef"),
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abc\n[... 1 of 6 characters cut ...]\nef"),
        ("abcdef", 2, "a\n[... 4 of 6 characters cut ...]\nf"),
        ("abcdef", 1, "a\n[... 5 of 6 characters cut ...]\n"),
        ("", 0, ""),
    ],
)
def test_a_text_is_cut_in_the_middle_with_a_note(text: str, keep: int | None, expected: str) -> None:
    assert cut_middle(text, keep) == expected


@given(st.text(), st.integers(0, 30))
def test_a_cut_text_keeps_exactly_the_given_number_of_characters(text: str, keep: int) -> None:
    cut = cut_middle(text, keep)
    note = f"\n[... {len(text) - keep} of {len(text)} characters cut ...]\n"
    assert cut == text if len(text) <= keep else len(cut) == keep + len(note) and note in cut


def test_several_entries_of_one_message_are_quoted_one_by_one() -> None:
    user = TranscriptEntry("user", "Stop." * 9, (), 0)
    other = TranscriptEntry("tool", "y" * 10, (), 0, is_result=True)
    message = TranscriptEntry("tool", "x" * 10, (), 0, is_result=True, more=(other, user))
    assert list_entries([message]) == [message, other, user]
    text = render_transcript([message], 4)
    assert text.count("[tool result]: xx") == text.count("[tool result]: yy") == 1
    assert text.endswith(f"[user]: {'Stop.' * 9}\n</conversation>")
