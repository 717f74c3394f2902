import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.command import (
    LONGEST_INSTRUCTIONS_CHARS,
    describe,
    may_be_command,
    parse_compact,
)
from gateway.core.compaction.manual import Failed, Folded, NothingToFold, UnderWay
from gateway.core.history.message import Call, Message, Role


def make_message(role: Role = "user", **fields: object) -> Message:
    return Message(role, b"k", b"d", 10, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "instructions"),
    [
        ("/compact", ""),
        (" \n/compact\n ", ""),
        ("/compact Keep ticket numbers.", "Keep ticket numbers."),
        ("/compact\tKeep\n\n  names. ", "Keep\n\n  names."),
        ("/compact /compact", "/compact"),
        ("/compacted", None),
        ("/compact: all", None),
        ("/Compact", None),
        ("//compact", None),
        ("compact", None),
        ("please /compact", None),
        ("Look:\n/compact", None),
        ("", None),
        (" \n", None),
    ],
)
def test_a_command_is_the_whole_text(text: str, instructions: str | None) -> None:
    assert parse_compact(text) == instructions


def test_a_text_of_more_than_the_longest_instructions_is_no_command() -> None:
    longest = "x" * LONGEST_INSTRUCTIONS_CHARS
    assert parse_compact(f"/compact {longest}") == longest
    assert parse_compact(f"/compact {longest}x") is None


@given(st.text())
def test_any_text_can_be_read_and_what_is_read_stands_in_it(text: str) -> None:
    instructions = parse_compact(text)
    assert instructions is None or (text.split()[0] == "/compact" and instructions in text)
    if text.strip():
        assert parse_compact(f"/compact {text}") == text.strip()


def test_only_words_of_a_user_can_be_one() -> None:
    assert may_be_command(make_message())
    assert not may_be_command(make_message("assistant", calls=(Call("1", "look"),)))
    assert not may_be_command(make_message("tool", results=("1",)))
    assert not may_be_command(make_message(results=("1",)))
    assert not may_be_command(make_message(has_media=True))
    assert not may_be_command(make_message("system"))


def test_what_is_told_says_how_it_ended() -> None:
    assert describe(Folded(24, 31_200, 6_400)) == (
        "Compacted: 24 earlier messages are now a summary. About 31,200 tokens before, 6,400 after."
    )
    assert (
        describe(Failed("truncated")) == "The compaction failed (truncated). The conversation is unchanged."
    )
    assert len({describe(outcome) for outcome in (NothingToFold(), UnderWay(), Failed(""))}) == 3
