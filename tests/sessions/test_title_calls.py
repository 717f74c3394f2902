"""A client's title waits for its conversation, in memory or in a store that several processes share."""

import pytest

from gateway.sessions.title_calls import (
    SessionTitle,
    TitleCalls,
    TitleReply,
    name_title,
    read_title,
    watch_title_call,
)
from gateway.store.keys import make_tag
from gateway.store.memory import MemoryStore
from gateway.wire.sse import SseEvent
from tests.builders.sessions import ask, turn_with
from tests.builders.state import make_store

_TITLE = SessionTitle("t", ("label.aa",), "Date parser")
_WHOLE = b'{"choices":[{"message":{"role":"assistant","content":"Date parser"},"finish_reason":"stop"}]}'


class SharedStore(MemoryStore):
    """As several processes use it."""

    is_shared = True


@pytest.mark.parametrize("asks_store", [True, False])
async def test_another_process_finds_a_title_where_the_store_is_shared(asks_store: bool) -> None:
    store = SharedStore()
    await store.open()
    await TitleCalls(store, 60).note(_TITLE)
    found = await TitleCalls(store, 60).find("t", _TITLE.proofs, asks_store=asks_store)
    assert found == ("Date parser" if asks_store else "")
    assert await TitleCalls(store, 60).find("u", _TITLE.proofs, asks_store=True) == ""


async def test_a_process_alone_keeps_titles_in_memory_only() -> None:
    store = await make_store()
    calls = TitleCalls(store, 60)
    await calls.note(_TITLE)
    assert await store.scan("") == []
    assert await calls.find("t", ("asked.bb", "label.aa"), asks_store=False) == "Date parser"
    assert await calls.find("u", ("label.aa",), asks_store=True) == ""
    calls.forget(make_tag("u"))
    assert await calls.find("t", ("label.aa",), asks_store=False) == "Date parser"
    calls.forget(make_tag("t"))
    assert await calls.find("t", ("label.aa",), asks_store=False) == ""


async def test_damaged_records_and_those_of_others_are_absent() -> None:
    store = SharedStore()
    await store.open()
    for damage in (b"", b"\xff", b'{"version":1,"owner":"u","title":"CANARY"}', b'{"version":2}'):
        store.write(name_title(make_tag("t"), "label.aa"), damage, keep_seconds=60)
        assert await TitleCalls(store, 60).find("t", ("label.aa",), asks_store=True) == ""


def test_the_reply_is_read_beside_what_listens_already() -> None:
    events: list[SseEvent] = []
    replies: list[TitleReply] = []
    for turn in (turn_with([ask("x")]), turn_with([ask("x")], on_event=events.append)):
        watched = watch_title_call(turn, replies.append)
        assert watched.on_event is not None
        watched.on_event(SseEvent("", _WHOLE))
    assert [reply.text for reply in replies] == ["Date parser"] * 2
    assert len(events) == 1


def test_a_title_call_proves_itself_by_its_label_or_by_what_it_quotes() -> None:
    asked = [ask("Name this:"), ask("Fix the parser of dates"), ask("y" * 70_000)]
    labelled = read_title(TitleReply(turn_with(asked, session="s"), "Date parser"))
    quoting = read_title(TitleReply(turn_with(asked), "Date parser"))
    assert len(labelled.proofs) == len(quoting.proofs) == 1
    assert labelled.proofs != quoting.proofs
    assert quoting == read_title(TitleReply(turn_with([ask("Fix the parser of dates")]), "Date parser"))
    assert read_title(TitleReply(turn_with(asked), "")).title == ""
