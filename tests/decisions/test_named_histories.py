"""Responses, items and threads that requests only name are written out, for the tenant that had them."""

import json
from collections.abc import AsyncIterator

import pytest

from gateway.bounds.lanes import Lanes
from gateway.conversations.branches import Branches
from gateway.conversations.reading import Received
from gateway.conversations.stored_responses import ResponseRecorder, StoredResponses
from gateway.state.memory import Memory
from gateway.state.named_turns import NamedTurns
from gateway.store.blobs import make_blobs
from gateway.wire.reading import read_event
from gateway.wire.references import STORED_RESPONSES
from gateway.wire.registry import RESPONSES
from gateway.wire.sse import SseEvent
from tests.builders.bodies import read_alone
from tests.builders.state import make_store
from tests.toy.shared_store import SharedStore, ToyServer

_FIRST = b'{"model":"m","input":"first"}'
_made: list[NamedTurns] = []


async def settle() -> None:
    """Until what was noted is with the store."""
    for named in _made:
        await named.finish()


@pytest.fixture(autouse=True)
async def settled() -> AsyncIterator[None]:
    yield
    await settle()
    _made.clear()


def make_memory(
    max_bytes: int, max_body_bytes: int = 1 << 20, store: SharedStore | None = None
) -> StoredResponses:
    """store None: nothing is found again that has left the memory."""
    store = store if store is not None else ToyServer(is_shared=False).connect()
    blobs = make_blobs(store, None, "named", max_bytes=1 << 20, keep_seconds=60)
    named = NamedTurns(store, Memory(), blobs, 60)
    _made.append(named)
    return StoredResponses(Branches(Memory(), 1 << 20, 8), named, Lanes(), max_bytes, max_body_bytes)


async def understand(
    memory: StoredResponses, body: bytes, tenant: str = "t", upstream: str = "u"
) -> tuple[Received, ResponseRecorder | None]:
    received = read_alone(tenant, RESPONSES, body)
    return await memory.write_out(received, STORED_RESPONSES, upstream)


async def write_out(memory: StoredResponses, body: bytes, tenant: str = "t", upstream: str = "u") -> bytes:
    """The body as it is understood."""
    return (await understand(memory, body, tenant, upstream))[0].body.data


async def answer(
    memory: StoredResponses, body: bytes, name: str, tenant: str = "t", text: str = "said"
) -> bytes:
    """One exchange; the body as it was understood."""
    item = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": text}
    response = {"object": "response", "id": name, "status": "completed", "output": [item]}
    received, recorder = await understand(memory, body, tenant)
    assert recorder is not None
    event = SseEvent("", json.dumps(response).encode())
    recorder.note(event, read_event(event))
    return received.body.data


def go_on(name: str) -> bytes:
    return json.dumps(
        {"model": "m", "previous_response_id": name, "input": [{"role": "user", "content": "on"}]}
    ).encode()


def read_input(body: bytes) -> list[object]:
    return [item.get("content") for item in json.loads(body)["input"]]


async def test_a_chain_of_responses_is_written_out_from_its_beginning() -> None:
    memory = make_memory(1 << 20)
    await answer(memory, _FIRST, "a")
    await answer(memory, go_on("a"), "b", text="said again")
    assert read_input(await write_out(memory, go_on("b"))) == [
        "first",
        "said",
        "on",
        "said again",
        "on",
    ]
    # A fork from the first answer.
    assert read_input(await write_out(memory, go_on("a"))) == ["first", "said", "on"]


async def test_a_response_of_one_tenant_is_unknown_to_another() -> None:
    memory = make_memory(1 << 20)
    await answer(memory, _FIRST, "a")
    for body in (go_on("a"), b'{"input":[{"type":"item_reference","id":"msg_a"}]}'):
        received, recorder = await understand(memory, body, tenant="v")
        assert received.body.data is body and recorder is None


async def test_a_response_of_one_upstream_is_unknown_to_another() -> None:
    """It would have to refuse the name, and cannot read what the other one encrypted."""
    memory = make_memory(1 << 20)
    await answer(memory, _FIRST, "a")
    for body in (go_on("a"), b'{"input":[{"type":"item_reference","id":"msg_a"}]}'):
        assert await write_out(memory, body, upstream="v") is body
        assert await write_out(memory, body) is not body


async def test_a_response_that_upstream_does_not_keep_is_not_kept_here() -> None:
    memory = make_memory(1 << 20)
    await answer(memory, _FIRST, "a")
    body = go_on("a").replace(b'"model"', b'"store":false,"model"')
    received, recorder = await understand(memory, body)
    assert read_input(received.body.data) == ["first", "said", "on"]
    assert recorder is None


async def test_a_circle_of_names_ends() -> None:
    memory = make_memory(1 << 20)
    await answer(memory, _FIRST, "a")
    await answer(memory, go_on("a"), "b")
    await answer(memory, go_on("b"), "a")
    body = go_on("a")
    assert await write_out(memory, body) is body


async def restart(store: SharedStore, body: bytes, tenant: str = "t", upstream: str = "u") -> bytes:
    """The body as another process understands it that has the same store."""
    received = read_alone(tenant, RESPONSES, body)
    memory = make_memory(1 << 20, store=store)
    return (await memory.write_out(received, STORED_RESPONSES, upstream))[0].body.data


async def record(memory: StoredResponses, body: bytes, name: str) -> None:
    item = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": "said"}
    response = {"object": "response", "id": name, "status": "completed", "output": [item]}
    received = read_alone("t", RESPONSES, body)
    recorder = (await memory.write_out(received, STORED_RESPONSES, "u"))[1]
    assert recorder is not None
    event = SseEvent("", json.dumps(response).encode())
    recorder.note(event, read_event(event))
    await settle()


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
    assert store.list_names() == []
    assert await restart(store, go_on("a")) == go_on("a")
    await record(memory, go_on("a"), "b")
    assert read_input(await restart(store, go_on("b"))) == ["x", "y", "said", "on", "said", "on"]


async def test_what_the_store_refused_is_saved_when_it_is_used_again() -> None:
    store = ToyServer(is_shared=False).connect()
    await store.open()
    memory = make_memory(1 << 20, store=store)
    store.is_full = True
    await answer(memory, _FIRST, "r1")
    await settle()
    store.is_full = False
    expected = await write_out(memory, go_on("r1"))
    await settle()
    assert await write_out(make_memory(1 << 20, store=store), go_on("r1")) == expected != go_on("r1")
