"""Titles out of summaries, and records of sessions."""

import zlib
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.session.titles import LONGEST_TITLE_CHARS
from gateway.core.session.work import SessionWork
from gateway.sessions.record import (
    StoredSession,
    TitleSource,
    pack_changes,
    unpack_changes,
    with_title,
)
from gateway.sessions.titles import clean_title, find_summary_title


@pytest.mark.parametrize(
    ("summary", "title"),
    [
        ("# Repair of the date parser\n\nText", "Repair of the date parser"),
        ("## Goal\n\n- Fix the parser of dates\n", "Fix the parser of dates"),
        (
            "**Summary of our conversation**\n\n1. **Primary request and intent:**\n   Fix the parser.",
            "Fix the parser",
        ),
        ("## Goal\nFix it.\n\n## Constraints and preferences\nUse only the standard library.", "Fix it"),
        ("## Goal\n修复日期解析器。\n\n## Constraints and preferences\n无", "修复日期解析器。"),
        ("## Goal\nNone\n\n## Decisions\nNone\n\n## Done\nThe parser reads dates.", "The parser reads dates"),
        ("**Task:**\nDates:\n- Parser\n\n## Files", "Parser"),
        ("## Decisions\nYes.\n\n## Next step\nRun all of the tests.", "Run all of the tests"),
        ("<summary>\nWe fixed the parser of dates.\n</summary>", "We fixed the parser of dates"),
        ("<think>Let me see</think># Context\n\nDone.", ""),
        ("# Parser\n", "Parser"),
        ("# Summary\n", ""),
        ("```\ncode\n```", ""),
        ("", ""),
    ],
)
def test_a_summary_gives_a_title(summary: str, title: str) -> None:
    assert find_summary_title(summary) == title


@given(st.text())
def test_titles_are_short_and_printable_whatever_they_are_made_of(text: str) -> None:
    for title in (clean_title(text), find_summary_title(text)):
        assert len(title) <= LONGEST_TITLE_CHARS
        assert title.isprintable()


def make_session(**fields: object) -> StoredSession:
    empty = StoredSession(owner="t", id="c", link="00", length=1, updated_seconds=1.0, work=SessionWork())
    return msgspec.structs.replace(empty, **fields)


@given(st.builds(SessionWork), st.text(max_size=20))
def test_a_record_comes_back(work: SessionWork, title: str) -> None:
    changes = work.changes
    session = with_title(make_session(work=replace(work, changes=())), title, "message")
    data = msgspec.msgpack.encode(session)
    assert msgspec.msgpack.decode(data, type=StoredSession) == session
    assert unpack_changes(pack_changes(changes)) == changes


def test_a_damaged_record_of_changes_holds_none() -> None:
    for data in (b"", b"x", pack_changes(())[:-4], zlib.compress(b"[1]"), zlib.compress(b"[" * 100_000)):
        assert unpack_changes(data) == ()


@pytest.mark.parametrize(
    ("known", "added", "left"),
    [
        (None, "message", "new"),
        ("message", "message", "old"),
        ("message", "summary", "new"),
        ("summary", "summary", "old"),
        ("summary", "message", "old"),
        ("client", "summary", "old"),
        ("client", "client", "new"),
        ("summary", "client", "new"),
    ],
)
def test_the_best_source_names_a_session(known: TitleSource | None, added: TitleSource, left: str) -> None:
    session = make_session(title="old", title_from=known)
    assert with_title(session, "new", added).title == left
    assert with_title(session, "", added) == session
