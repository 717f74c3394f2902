"""Titles out of summaries, and records of sessions to which requests and processes add."""

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.session.titles import LONGEST_TITLE_CHARS
from gateway.core.session.work import CommandRun, FileChange, OpenTodo, SessionWork
from gateway.sessions.record import (
    StoredSession,
    TitleOnly,
    TitleSource,
    with_title,
    with_work,
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


_texts = st.text(max_size=20)
_numbers = st.none() | st.integers(0, 50)


def make_session(**fields: object) -> StoredSession:
    return msgspec.structs.replace(
        StoredSession(owner="t", id="c", link="00", length=1, updated_seconds=1.0), **fields
    )


@st.composite
def works(draw: st.DrawFn) -> SessionWork:
    known = draw(st.lists(st.tuples(st.sampled_from("abc"), _numbers), max_size=8))
    changes = [
        FileChange(position=at, path=path, kind="changed", additions=lines, deletions=lines, diff="@@\n-x\n")
        for at, (path, lines) in enumerate(known)
    ]
    commands = draw(st.lists(_texts.filter(bool), max_size=4))
    return SessionWork(
        changes=tuple(changes),
        commands=tuple(CommandRun(position=at, command=text) for at, text in enumerate(commands)),
        todos=tuple(OpenTodo(text=text) for text in draw(st.lists(_texts, max_size=3))),
        titles=tuple(enumerate(draw(st.lists(_texts, max_size=3)))),
    )


@given(works(), _texts)
def test_a_record_comes_back(work: SessionWork, title: str) -> None:
    session = with_title(with_work(make_session(), work), title, "message")
    data = msgspec.msgpack.encode(session)
    assert msgspec.msgpack.decode(data, type=StoredSession) == session
    assert msgspec.msgpack.decode(data, type=TitleOnly).title == title


@given(works(), works(), st.integers(0, 8))
def test_what_is_new_is_added_to_what_a_record_has(work: SessionWork, other: SessionWork, known: int) -> None:
    """Whatever it had: the first part of the same work, or another one."""
    whole = with_work(make_session(), work)
    for before in (_cut(work, known), other):
        session = with_work(with_work(make_session(), before), work, before)
        assert replace(session, edits=whole.edits) == whole
        assert set(session.edits) >= set(whole.edits)


def _cut(work: SessionWork, known: int) -> SessionWork:
    return dataclasses.replace(work, changes=work.changes[:known], commands=work.commands[:known])


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
