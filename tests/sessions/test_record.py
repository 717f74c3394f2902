"""The record of a session is bounded, comes back whole, and is only found under its own key."""

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.core.session.work import (
    CommandRun,
    FileChange,
    OpenTodo,
    SessionWork,
    list_touched_files,
)
from gateway.sessions.record import (
    StoredSession,
    TitleSource,
    make_work,
    name_session,
    parse_session,
    parse_title,
    render_session,
    with_title,
    with_work,
)
from gateway.store.keys import make_tag

_KEY = name_session(make_tag("t"), "c")
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
    data = render_session(session)
    assert parse_session(_KEY, data) == session
    assert parse_title(_KEY, data) == title


@given(works())
def test_the_work_of_a_record_counts_as_the_one_that_it_was_made_of(work: SessionWork) -> None:
    session = with_work(make_session(), work)
    assert list_touched_files(make_work(session).changes) == list_touched_files(work.changes)
    assert with_work(session, make_work(session)) == session


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


def test_a_record_is_bounded_and_keeps_the_newest() -> None:
    changes = [
        FileChange(position=at, path=f"{at}" + "p" * 900, kind="changed", additions=1, deletions=0)
        for at in range(5_000)
    ]
    work = SessionWork(
        changes=tuple(changes),
        commands=tuple(CommandRun(position=at, command=f"{at}" + "c" * 2_000) for at in range(1_000)),
        todos=tuple(OpenTodo(text="t" * 300) for _ in range(100)),
        titles=tuple((at, "é" * 100) for at in range(1_000)),
        unlisted_commands=7,
    )
    session = with_work(make_session(), work)
    assert len(render_session(session)) < 200_000
    assert session.files[-1].path.startswith("4999") and session.commands[-1].command.startswith("999c")
    assert session.left_files == 5_000 - len(session.files) > 0
    assert session.left_commands == 1_007 - len(session.commands) > 7
    assert session.titles[-1][0] == 999 and session.edits[-1] == 4_999


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


def test_what_is_damaged_or_under_another_key_is_absent() -> None:
    data = render_session(make_session(title="x"))
    for key in (name_session(make_tag("u"), "c"), name_session(make_tag("t"), "d"), "a-session:c"):
        assert parse_session(key, data) is None
        assert parse_title(key, data) == ""
    for damaged in (
        b"",
        b"\xff",
        b"{}",
        data[:-5],
        data.replace(b'"version":1', b'"version":2'),
        b"[" * 9_999,
    ):
        assert parse_session(_KEY, damaged) is None
        assert parse_title(_KEY, damaged) == ""
