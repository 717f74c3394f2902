"""Conversations are followed turn by turn; a fork, a restart and a rewind give what a whole reading gives."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.turn import Turn
from gateway.core.policy import Originals, Policy
from gateway.sessions.record import StoredSession, name_session
from gateway.store.keys import make_tag
from gateway.wire.sse import SseEvent
from tests.builders.chat import JSON, make_pivot
from tests.builders.sessions import TAG, SessionParts, ask, call, edit, keeping_sessions, turn_with

_TASK = "Fix the parser of dates, please."
_SESSION = [
    ask(_TASK),
    *edit(1, "/a.py", "one\n", "two\nthree\n"),
    *call(2, "bash", {"command": "make test"}, "ok"),
    *edit(3, "/b.py", "x\n", "y\n"),
    *edit(4, "/a.py", "two\n", "2\n"),
]
# Where a request of the session may end.
_ENDS = (1, 3, 5, 7, 9)


async def follow(parts: SessionParts, *turns: Turn) -> None:
    for turn in turns:
        parts.keeper.note_request(turn)
        await parts.keeper.finish()


async def load(parts: SessionParts, conversation: str = "c", tag: str = TAG) -> StoredSession:
    session = await parts.keeper.load(tag, conversation)
    assert session is not None
    return session


def describe(session: StoredSession) -> tuple[Any, ...]:
    """Without times."""
    return session.title, session.edits, session.files, session.commands, session.todos, session.titles


async def test_files_commands_and_the_title_are_kept() -> None:
    async with keeping_sessions() as parts:
        await follow(parts, turn_with(_SESSION))
        session = await load(parts)
        found = await parts.diffs.load(TAG, "c", session.edits)
    files = {file.path: (file.changes, file.additions, file.deletions) for file in session.files}
    assert files == {"/a.py": (2, 3, 2), "/b.py": (1, 1, 1)}
    assert [command.command for command in session.commands] == ["make test"]
    assert (session.title, session.title_from) == (_TASK, "message")
    assert session.titles == ((0, _TASK),)
    assert session.edits == (1, 5, 7)
    assert [(each.position, each.path) for each in found.changes] == [
        (1, "/a.py"),
        (5, "/b.py"),
        (7, "/a.py"),
    ]
    assert "-one\n+two\n+three\n" in found.changes[0].diff


async def follow_somewhere(parts: SessionParts, turn: Turn, *, is_elsewhere: bool) -> None:
    """In this process, or in another one with the same stores."""
    if not is_elsewhere:
        await follow(parts, turn)
        return
    async with keeping_sessions(parts.store, parts.originals) as other:
        await follow(other, turn)


@given(st.lists(st.sampled_from(_ENDS), min_size=1, max_size=6), st.data())
async def test_any_order_of_requests_and_restarts_ends_as_one_reading_does(
    ends: list[int], data: st.DataObject
) -> None:
    """Requests may be repeated, earlier ones too, by several processes that share the stores."""
    async with keeping_sessions() as parts, keeping_sessions() as whole:
        for end in ends:
            await follow_somewhere(parts, turn_with(_SESSION[:end]), is_elsewhere=data.draw(st.booleans()))
        await follow(parts, turn_with(_SESSION))
        await follow(whole, turn_with(_SESSION))
        session, expected = await load(parts), await load(whole)
        assert describe(session) == describe(expected)
        found = await parts.diffs.load(TAG, "c", session.edits)
        assert found == await whole.diffs.load(TAG, "c", expected.edits)


async def test_of_several_waiting_turns_of_a_conversation_the_newest_is_read() -> None:
    async with keeping_sessions() as parts:
        for end in _ENDS:
            parts.keeper.note_request(turn_with(_SESSION[:end]))
        await parts.keeper.finish()
        assert (await load(parts)).length == len(_SESSION)


async def test_another_history_under_the_same_id_leaves_nothing_of_the_first() -> None:
    other = [*_SESSION[:3], ask("No, another way."), *edit(9, "/c.py", "a\n", "b\n")]
    async with keeping_sessions() as parts:
        await follow(parts, turn_with(_SESSION), turn_with(other))
        session = await load(parts)
        assert [file.path for file in session.files] == ["/a.py", "/c.py"]
        assert [file.deletions for file in session.files] == [1, 1]
        found = await parts.diffs.load(TAG, "c", range(20))
    assert [change.position for change in found.changes] == [1, 4]


async def test_nothing_is_kept_where_the_policy_says_so() -> None:
    silent = [Policy(session_summary=False), Policy(originals=Originals(keep=False))]
    async with keeping_sessions() as parts:
        for policy in silent:
            turn = turn_with(_SESSION, policy=policy)
            parts.keeper.note_summary(turn, make_pivot(turn.received.conversation, 3))
            await follow(parts, turn)
            assert parts.keeper.watch(turn_with([ask("x")], policy=policy, purpose="title")).on_event is None
        assert await parts.store.scan("") == await parts.originals.scan("") == []


async def test_side_calls_have_no_session() -> None:
    async with keeping_sessions() as parts:
        await follow(parts, turn_with(_SESSION, purpose="summary"), turn_with(_SESSION, purpose="title"))
        assert await parts.store.scan("") == []
        await follow(parts, turn_with(_SESSION, purpose="agent"))
        assert (await load(parts)).files != ()


async def test_an_unchanged_session_is_written_once_a_day() -> None:
    chat: list[JSON] = [ask(_TASK), {"role": "assistant", "content": "Yes."}]
    async with keeping_sessions() as parts:
        await follow(parts, turn_with(_SESSION))
        first = await load(parts)
        longer = [
            *_SESSION,
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "<info-msg>x</info-msg>"},
        ]
        parts.clock.now += 3_600
        await follow(parts, turn_with(longer))
        assert await load(parts) == first
        parts.clock.now += 90_000
        await follow(parts, turn_with([*longer, *chat[1:], longer[-1]]))
        assert (await load(parts)).updated_seconds == parts.clock.now


async def test_the_first_summary_names_a_session_and_later_ones_do_not() -> None:
    async with keeping_sessions() as parts:
        turn = turn_with(_SESSION)
        conversation = turn.received.conversation
        parts.keeper.note_summary(
            turn, make_pivot(conversation, 3, summary="# Parser of dates repaired\n\nMore.")
        )
        await follow(parts, turn)
        parts.keeper.note_summary(turn, make_pivot(conversation, 5, summary="# Something else happened\n"))
        session = await load(parts)
    assert (session.title, session.title_from) == ("Parser of dates repaired", "summary")


async def test_a_digest_names_nothing() -> None:
    async with keeping_sessions() as parts:
        turn = turn_with(_SESSION)
        pivot = make_pivot(turn.received.conversation, 3, summary="# Some heading here", is_digest=True)
        await follow(parts, turn)
        parts.keeper.note_summary(turn, pivot)
        assert (await load(parts)).title_from == "message"


def reply_to(turn: Turn, text: str) -> None:
    """A streamed reply with this text."""
    assert turn.on_event is not None
    for data in (
        b'{"choices":[{"index":0,"delta":{"role":"assistant","content":"%s"}}]}' % text.encode(),
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        b"[DONE]",
    ):
        turn.on_event(SseEvent("message", data))


@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize(
    ("label", "title_label", "asked", "is_named"),
    [
        ("s1", "s1", "anything else", True),
        ("s1", "s2", _TASK, False),
        ("s1", None, _TASK, False),
        (None, None, _TASK, True),
        (None, None, _TASK + " Now.", False),
        (None, "s1", _TASK, False),
    ],
)
async def test_a_title_call_names_a_session_that_is_proven_to_be_its(
    comes_first: bool, label: str | None, title_label: str | None, asked: str, is_named: bool
) -> None:
    titling = [ask("Generate a title for this conversation:\n"), ask(asked)]
    async with keeping_sessions() as parts:
        turn = turn_with(_SESSION, session=label)
        if not comes_first:
            await follow(parts, turn)
        reply_to(parts.keeper.watch(turn_with(titling, purpose="title", session=title_label)), "Date parser")
        if comes_first:
            await follow(parts, turn)
        session = await load(parts)
    assert session.title == ("Date parser" if is_named else _TASK)


async def test_a_title_call_of_another_tenant_names_nothing() -> None:
    titling = [ask("Generate a title for this conversation:\n"), ask(_TASK)]
    async with keeping_sessions() as parts:
        await follow(parts, turn_with(_SESSION))
        reply_to(parts.keeper.watch(turn_with(titling, tenant="u", purpose="title")), "CANARY")
        await follow(parts, turn_with(_SESSION[:3], conversation_id="d"))
        assert {(await load(parts, each)).title for each in "cd"} == {_TASK}


async def test_two_tenants_under_one_short_id_do_not_meet() -> None:
    """Ids are short hashes."""
    other = [ask("CANARY of another tenant"), *edit(1, "/CANARY", "a\n", "b\n")]
    async with keeping_sessions() as parts:
        await follow(parts, turn_with(_SESSION[:3]), turn_with(other, tenant="u"), turn_with(_SESSION))
        mine, theirs = await load(parts), await load(parts, tag=make_tag("u"))
    assert "CANARY" not in str(mine)
    assert [file.path for file in theirs.files] == ["/CANARY"]


async def test_a_forgotten_conversation_and_tenant_leave_memory() -> None:
    async with keeping_sessions() as parts:
        parts.keeper.note_request(turn_with(_SESSION))
        parts.keeper.forget_conversation(TAG, "c")
        parts.keeper.note_request(turn_with(_SESSION, conversation_id="d"))
        parts.keeper.forget(TAG)
        parts.keeper.note_request(turn_with(_SESSION, conversation_id="e"))
        parts.keeper.forget(make_tag("another"))
        await parts.keeper.finish()
        stored = [key for key, _ in await parts.store.scan("a-session:")]
    assert stored == [name_session(TAG, "e")]


async def test_what_is_deleted_while_it_is_read_is_not_written() -> None:
    for forget in ("conversation", "tenant"):
        async with keeping_sessions() as parts:
            parts.keeper.note_request(turn_with(_SESSION))
            finished = asyncio.ensure_future(parts.keeper.finish())
            # The job begins, and waits for its thread.
            for _ in range(4):
                await asyncio.sleep(0)
            if forget == "tenant":
                parts.keeper.forget(TAG)
            else:
                parts.keeper.forget_conversation(TAG, "c")
            await finished
            assert await parts.store.scan("") == await parts.originals.scan("") == []


@pytest.mark.parametrize("forgotten", ["conversation", "tenant"])
async def test_titles_that_were_queued_when_something_was_forgotten_are_not_kept(forgotten: str) -> None:
    titling = [ask("Generate a title for this conversation:\n"), ask(_TASK)]
    async with keeping_sessions() as parts:
        turn = turn_with(_SESSION)
        await follow(parts, turn)
        summary = make_pivot(turn.received.conversation, 3, summary="# CANARY of a summary\n")
        parts.keeper.note_summary(turn, summary)
        reply_to(parts.keeper.watch(turn_with(titling, purpose="title")), "CANARY")
        if forgotten == "tenant":
            parts.keeper.forget(TAG)
        else:
            parts.keeper.forget_conversation(TAG, "c")
        await parts.store.purge(TAG)
        await parts.keeper.finish()
        assert await parts.store.scan("") == []
        await follow(parts, turn_with(_SESSION[:3]))
        assert (await load(parts)).title == _TASK


async def test_a_queued_title_of_another_conversation_is_kept() -> None:
    async with keeping_sessions() as parts:
        turn = turn_with(_SESSION)
        await follow(parts, turn)
        summary = make_pivot(turn.received.conversation, 3, summary="# Parser of dates repaired\n")
        parts.keeper.note_summary(turn, summary)
        parts.keeper.forget_conversation(TAG, "d")
        parts.keeper.forget(make_tag("another"))
        assert (await load(parts)).title == "Parser of dates repaired"


async def test_memory_is_bounded_and_what_is_not_there_is_read_again() -> None:
    async with keeping_sessions(max_bytes=20_000) as parts:
        for number in range(50):
            await follow(parts, turn_with(_SESSION[:5], conversation_id=f"{number}"))
        await follow(parts, turn_with(_SESSION, conversation_id="0"))
        session = await load(parts, "0")
    assert [file.changes for file in session.files] == [2, 1]


async def test_damaged_records_are_absent() -> None:
    async with keeping_sessions() as parts:
        parts.store.write(name_session(TAG, "c"), b'{"version":9', keep_seconds=60)
        assert await parts.keeper.load(TAG, "c") is None
        await follow(parts, turn_with(_SESSION))
        assert (await load(parts)).length == len(_SESSION)


async def test_a_large_history_goes_on_with_its_record_after_a_restart() -> None:
    large = [*_SESSION[:5], *call(8, "bash", {"command": "make"}, "x" * 600_000)]
    whole = [*large, *edit(9, "/a.py", "three\n", "3\n"), *edit(10, "/new.py", "a\n", "b\n")]
    async with keeping_sessions() as parts:
        await follow(parts, turn_with(large))
        async with keeping_sessions(parts.store, parts.originals) as restarted:
            await follow(restarted, turn_with(whole))
            session = await load(restarted)
            found = await restarted.diffs.load(TAG, "c", session.edits)
    files = {file.path: (file.changes, file.additions, file.deletions) for file in session.files}
    assert files == {"/a.py": (2, 3, 2), "/new.py": (1, 1, 1)}
    assert [command.command for command in session.commands] == ["make test", "make"]
    assert [change.position for change in found.changes] == [1, 7, 9]
