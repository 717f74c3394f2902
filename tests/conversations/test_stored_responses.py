import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bounds.lanes import Lanes
from gateway.conversations.recognizer import Received, Recognizer
from gateway.conversations.stored_responses import ResponseRecorder, StoredResponses
from gateway.core.errors import BeyondBounds
from gateway.state.named_turns import NamedTurns
from gateway.store.memory import MemoryStore
from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.responses import RESPONSES
from gateway.wire.formats.responses.history import STORED_HISTORY
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import UsedNames
from tests.builders.state import make_storage, make_store
from tests.toy.shared_store import ToyServer

_FIRST = b'{"model":"m","input":"first"}'


def make_memory(
    max_bytes: int, max_body_bytes: int = 1 << 20, store: MemoryStore | None = None
) -> StoredResponses:
    """store None: nothing is found again that has left the memory."""
    named = NamedTurns(make_storage(store or MemoryStore()))
    return StoredResponses(make_recognizer(), named, max_bytes, max_body_bytes)


def make_recognizer() -> Recognizer:
    return Recognizer(1 << 20, 1 << 20, 8)


def understand(
    memory: StoredResponses, body: bytes, tenant: str = "t", upstream: str = "u"
) -> tuple[Received, ResponseRecorder | None]:
    received = make_recognizer().recognize(tenant, RESPONSES, body)
    return asyncio.run(memory.write_out(received, STORED_HISTORY, upstream, Lanes()))


def write_out(memory: StoredResponses, body: bytes, tenant: str = "t", upstream: str = "u") -> bytes:
    """The body as it is understood."""
    return understand(memory, body, tenant, upstream)[0].body.data


def answer(memory: StoredResponses, body: bytes, name: str, tenant: str = "t", text: str = "said") -> bytes:
    """One exchange; the body as it was understood."""
    item = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": text}
    response = {"object": "response", "id": name, "status": "completed", "output": [item]}
    received, recorder = understand(memory, body, tenant)
    assert recorder is not None
    recorder.note(SseEvent("", json.dumps(response).encode()))
    return received.body.data


def go_on(name: str) -> bytes:
    return json.dumps(
        {"model": "m", "previous_response_id": name, "input": [{"role": "user", "content": "on"}]}
    ).encode()


def read_input(body: bytes) -> list[object]:
    return [item.get("content") for item in json.loads(body)["input"]]


def test_a_chain_of_responses_is_written_out_from_its_beginning() -> None:
    memory = make_memory(1 << 20)
    answer(memory, _FIRST, "a")
    answer(memory, go_on("a"), "b", text="said again")
    assert read_input(write_out(memory, go_on("b"))) == [
        "first",
        "said",
        "on",
        "said again",
        "on",
    ]
    # A fork from the first answer.
    assert read_input(write_out(memory, go_on("a"))) == ["first", "said", "on"]


def test_single_items_are_known_by_their_ids() -> None:
    memory = make_memory(1 << 20)
    answer(memory, _FIRST, "a")
    body = b'{"input":[{"type":"item_reference","id":"msg_a"}]}'
    assert read_input(write_out(memory, body)) == ["said"]


def test_a_response_of_one_tenant_is_unknown_to_another() -> None:
    memory = make_memory(1 << 20)
    answer(memory, _FIRST, "a")
    for body in (go_on("a"), b'{"input":[{"type":"item_reference","id":"msg_a"}]}'):
        received, recorder = understand(memory, body, tenant="v")
        assert received.body.data is body and recorder is None


def test_a_response_of_one_upstream_is_unknown_to_another() -> None:
    """It would have to refuse the name, and cannot read what the other one encrypted."""
    memory = make_memory(1 << 20)
    answer(memory, _FIRST, "a")
    for body in (go_on("a"), b'{"input":[{"type":"item_reference","id":"msg_a"}]}'):
        assert write_out(memory, body, upstream="v") is body
        assert write_out(memory, body) is not body


def test_an_evicted_response_breaks_its_chain_and_nothing_else() -> None:
    memory = make_memory(6_000)
    answer(memory, _FIRST, "a")
    for number in range(10):
        answer(memory, _FIRST, f"other-{number}")
    body = go_on("a")
    assert write_out(memory, body) is body


def test_large_bodies_do_not_push_small_ones_out() -> None:
    memory = make_memory(3 << 18)
    answer(memory, _FIRST, "a")
    for number in range(10):
        answer(memory, json.dumps({"input": "x" * 200_000}).encode(), f"large-{number}")
    assert read_input(write_out(memory, go_on("a"))) == ["first", "said", "on"]


def test_a_circle_of_names_ends() -> None:
    memory = make_memory(1 << 20)
    answer(memory, _FIRST, "a")
    answer(memory, go_on("a"), "b")
    answer(memory, go_on("b"), "a")
    body = go_on("a")
    assert write_out(memory, body) is body


def test_a_response_that_upstream_does_not_keep_is_not_kept_here() -> None:
    memory = make_memory(1 << 20)
    answer(memory, _FIRST, "a")
    body = go_on("a").replace(b'"model"', b'"store":false,"model"')
    received, recorder = understand(memory, body)
    assert read_input(received.body.data) == ["first", "said", "on"]
    assert recorder is None


def test_an_opaque_item_is_not_a_name_and_is_not_written_out() -> None:
    looked_at: list[bytes] = []

    def find_names(data: bytes) -> UsedNames | None:
        looked_at.append(data)
        return None

    history = replace(STORED_HISTORY, find_names=find_names)
    opaque = b'{"input":[{"type":"compaction","encrypted_content":"x"}]}'
    named = b'{"input":[{"type":"item_reference","id":"rs_1"}]}'
    for body in (opaque, named):
        received = make_recognizer().recognize("t", RESPONSES, body)
        asyncio.run(make_memory(1 << 20).write_out(received, history, "u", Lanes()))
    assert looked_at == [named]


def test_a_request_that_names_more_than_a_body_may_hold_is_beyond_bounds() -> None:
    memory = make_memory(1 << 20, max_body_bytes=2_000)
    answer(memory, b'{"model":"m","input":"first"}', "resp_1", text="x" * 3_000)
    reference = b'{"type":"item_reference","id":"msg_resp_1"}'
    for fields in (b'"previous_response_id":"resp_1","input":"second"', b'"input":[%s]' % reference):
        with pytest.raises(BeyondBounds, match="what it names"):
            write_out(memory, b'{"model":"m",%s}' % fields)


async def restart(store: MemoryStore, body: bytes, tenant: str = "t", upstream: str = "u") -> bytes:
    """The body as another process understands it that has the same store."""
    received = make_recognizer().recognize(tenant, RESPONSES, body)
    memory = make_memory(1 << 20, store=store)
    return (await memory.write_out(received, STORED_HISTORY, upstream, Lanes()))[0].body.data


async def record(memory: StoredResponses, body: bytes, name: str) -> None:
    item = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": "said"}
    response = {"object": "response", "id": name, "status": "completed", "output": [item]}
    received = make_recognizer().recognize("t", RESPONSES, body)
    recorder = (await memory.write_out(received, STORED_HISTORY, "u", Lanes()))[1]
    assert recorder is not None
    recorder.note(SseEvent("", json.dumps(response).encode()))


async def test_a_restart_loses_neither_responses_nor_items() -> None:
    store = await make_store()
    memory = make_memory(1 << 20, store=store)
    await record(memory, _FIRST, "a")
    await record(memory, go_on("a"), "b")
    reference = b'{"input":[{"type":"item_reference","id":"msg_a"}]}'
    assert read_input(await restart(store, go_on("b"))) == ["first", "said", "on", "said", "on"]
    assert read_input(await restart(store, reference)) == ["said"]
    for body in (go_on("b"), reference):
        assert await restart(store, body, tenant="v") is body
        assert await restart(store, body, upstream="v") is body


async def test_a_body_that_repeats_everything_is_stored_once_it_is_named() -> None:
    """Such clients would otherwise fill the disk with every request, and push out what is named."""
    store = await make_store()
    memory = make_memory(3 << 20, store=store)
    talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    await record(memory, json.dumps({"input": talk}).encode(), "a")
    assert await store.scan("") == []
    assert await restart(store, go_on("a")) == go_on("a")
    await record(memory, go_on("a"), "b")
    assert read_input(await restart(store, go_on("b"))) == ["x", "y", "said", "on", "said", "on"]


async def test_items_are_stored_for_clients_that_refer_to_them() -> None:
    store = await make_store()
    memory = make_memory(3 << 20, store=store)
    await record(memory, _FIRST, "a")
    reference = {"type": "item_reference", "id": "msg_a"}
    body = json.dumps({"input": [reference, {"role": "user", "content": "on"}]}).encode()
    await record(memory, body, "b")
    reference_to_both = json.dumps({"input": [reference, reference | {"id": "msg_b"}]}).encode()
    assert read_input(await restart(store, reference_to_both)) == ["said", "said"]
    # The history itself, which each request repeats, is not.
    assert len(await store.scan("turn:")) == 1


async def test_what_has_left_the_memory_is_read_from_the_store() -> None:
    store = await make_store()
    memory = make_memory(6_000, store=store)
    await record(memory, _FIRST, "a")
    for number in range(10):
        await record(memory, _FIRST, f"other-{number}")
    received = make_recognizer().recognize("t", RESPONSES, go_on("a"))
    written = (await memory.write_out(received, STORED_HISTORY, "u", Lanes()))[0]
    assert read_input(written.body.data) == ["first", "said", "on"]


async def test_what_is_read_from_the_store_is_not_written_again_at_each_request() -> None:
    """A thread may be larger than the memory."""
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    await store.open()
    memory = make_memory(6_000, store=store)
    for name in ("a", *(f"other-{number}" for number in range(10))):
        await record(memory, _FIRST, name)
    now[0] = 50.0
    received = make_recognizer().recognize("t", RESPONSES, go_on("a"))
    written = (await memory.write_out(received, STORED_HISTORY, "u", Lanes()))[0]
    assert read_input(written.body.data) == ["first", "said", "on"]
    # The builders keep a record for a minute.
    now[0] = 70.0
    assert await store.scan("turn:") == []


def ask_in_thread(thread: object, text: str, **fields: object) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": "m", "messages": messages, "thread": thread} | fields).encode()


async def test_a_thread_is_written_out_under_a_new_one() -> None:
    store = await make_store()
    memory = make_memory(1 << 20, store=store)
    bodies = [
        ask_in_thread({"type": "create"}, "one", system="S", tools=[]),
        ask_in_thread({"type": "continue", "previous_message_id": "msg_0"}, "two"),
        ask_in_thread({"type": "continue", "previous_message_id": "msg_1"}, "three"),
    ]
    received = None
    for number, body in enumerate(bodies):
        received = make_recognizer().recognize("t", MESSAGES, body)
        assert MESSAGES.stored_history is not None
        received, recorder = await memory.write_out(received, MESSAGES.stored_history, "u", Lanes())
        assert recorder is not None
        reply = {"type": "message", "id": f"msg_{number}", "content": [{"type": "text", "text": "said"}]}
        recorder.note(SseEvent("", json.dumps(reply).encode()))
    assert received is not None
    written = json.loads(received.body.data)
    said = {"role": "assistant", "content": [{"type": "text", "text": "said"}]}
    asked = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    assert written["messages"] == [asked[0], said, asked[1], said, asked[2]]
    assert (written["system"], written["tools"], written["thread"]) == ("S", [], {"type": "create"})
    # A restart changes nothing.
    memory = make_memory(1 << 20, store=store)
    again = make_recognizer().recognize("t", MESSAGES, bodies[2])
    assert MESSAGES.stored_history is not None
    again, _ = await memory.write_out(again, MESSAGES.stored_history, "u", Lanes())
    assert again.body.data == received.body.data


async def test_what_was_changed_before_a_response_is_remembered_with_it() -> None:
    store = await make_store()
    memory = make_memory(1 << 20, store=store)
    received = make_recognizer().recognize("t", RESPONSES, _FIRST)
    received, recorder = await memory.write_out(received, STORED_HISTORY, "u", Lanes())
    assert recorder is not None and received.held == ""
    recorder.note_sent("changes", "c")
    response = {"object": "response", "id": "a", "status": "completed", "output": []}
    recorder.note(SseEvent("", json.dumps(response).encode()))
    for each in (memory, make_memory(1 << 20, store=store)):
        received = make_recognizer().recognize("t", RESPONSES, go_on("a"))
        received, _ = await each.write_out(received, STORED_HISTORY, "u", Lanes())
        assert received.held == "changes"


_TEXTS = st.text(min_size=1, max_size=12).filter(str.strip)
_MARKS = st.sampled_from([{}, {"cache_control": {"type": "ephemeral"}}])
_TEXT_BLOCKS = st.builds(lambda text, mark: {"type": "text", "text": text} | mark, _TEXTS, _MARKS)
_ASKED = st.one_of(_TEXTS, st.lists(_TEXT_BLOCKS, min_size=1, max_size=3))
_INPUTS = st.dictionaries(_TEXTS, st.one_of(st.integers(), _TEXTS, st.floats(0, 1), st.none()), max_size=3)
_REPLIES = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, _TEXTS),
        st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "c2ln"}, _TEXTS),
        st.builds(
            lambda given: {"type": "tool_use", "id": "toolu_1", "name": "look", "input": given}, _INPUTS
        ),
    ),
    min_size=1,
    max_size=3,
)


def stream_reply(name: str, blocks: list[dict[str, Any]], size: int) -> Iterator[dict[str, Any]]:
    """In pieces of this many characters."""
    yield {"type": "message_start", "message": {"id": name, "content": []}}
    for index, block in enumerate(blocks):
        match block:
            case {"type": "tool_use", "input": given}:
                hollow, key, whole = block | {"input": {}}, "partial_json", json.dumps(given)
            case {"type": "thinking", "thinking": whole}:
                hollow, key = block | {"thinking": ""}, "thinking"
            case _:
                hollow, key, whole = block | {"text": ""}, "text", block["text"]
        kind = {"partial_json": "input_json_delta", "thinking": "thinking_delta", "text": "text_delta"}[key]
        yield {"type": "content_block_start", "index": index, "content_block": hollow}
        for at in range(0, len(whole), size):
            delta = {"type": kind, key: whole[at : at + size]}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_stop"}


@given(st.lists(st.tuples(_ASKED, _REPLIES), min_size=1, max_size=5), st.integers(0, 9))
async def test_a_continued_thread_is_the_history_sent_in_full(
    turns: list[tuple[Any, list[dict[str, Any]]]], size: int
) -> None:
    """size: of the pieces of a streamed reply; 0 for one that is not streamed."""
    assert MESSAGES.stored_history is not None
    memory, recognizer, lanes = make_memory(1 << 20), make_recognizer(), Lanes()
    full: list[dict[str, Any]] = []
    for number, (asked, blocks) in enumerate(turns):
        message = {"role": "user", "content": asked}
        full.append(message)
        thread = (
            {"type": "continue", "previous_message_id": f"m{number - 1}"} if number else {"type": "create"}
        )
        body = {"model": "m", "messages": [message], "thread": thread} | ({} if number else {"system": "S"})
        received = recognizer.recognize("t", MESSAGES, json.dumps(body).encode())
        received, recorder = await memory.write_out(received, MESSAGES.stored_history, "u", lanes)
        assert recorder is not None
        in_full = {"model": "m", "system": "S", "messages": full, "thread": {"type": "create"}}
        whole = make_recognizer().recognize("t", MESSAGES, json.dumps(in_full).encode())
        assert received.conversation.chain[:] == whole.conversation.chain[:]
        assert received.body.envelope.system == whole.body.envelope.system
        *earlier, newest = json.loads(received.body.data)["messages"]
        assert [*map(without_marks, earlier), newest] == [*map(without_marks, full[:-1]), message]
        assert "cache_control" not in json.dumps(earlier)
        name = f"m{number}"
        events = (
            [*stream_reply(name, blocks, size)]
            if size
            else [{"type": "message", "id": name, "content": blocks}]
        )
        for event in events:
            recorder.note(SseEvent("" if not size else "message", json.dumps(event).encode()))
        full.append({"role": "assistant", "content": blocks})


def without_marks(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return message
    kept = [{key: value for key, value in block.items() if key != "cache_control"} for block in content]
    return message | {"content": kept}


async def test_a_long_thread_that_another_process_has_seen_is_read_in_three_trips() -> None:
    server = ToyServer()
    here, there = server.connect(), server.connect()
    for store in (here, there):
        await store.open()
    memory = StoredResponses(make_recognizer(), NamedTurns(make_storage(here)), 1 << 20, 1 << 20)
    body, count = _FIRST, 60
    for number in range(count):
        await record(memory, body, f"r{number}")
        body = go_on(f"r{number}")
    await asyncio.sleep(0.001)
    other = StoredResponses(make_recognizer(), NamedTurns(make_storage(there)), 1 << 20, 1 << 20)
    received = make_recognizer().recognize("t", RESPONSES, body)
    found = (await other.write_out(received, STORED_HISTORY, "u", Lanes()))[0]
    assert len(read_input(found.body.data)) == 2 * count + 1
    # The newest, 32 before it, and from the oldest of those again.
    assert there.reads <= 4
