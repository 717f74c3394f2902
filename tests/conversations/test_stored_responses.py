import asyncio
import json
from dataclasses import replace

import pytest

from gateway.bounds.lanes import Lanes
from gateway.conversations.recognizer import Received, Recognizer
from gateway.conversations.stored_responses import StoredResponses
from gateway.conversations.turn import OnEvent
from gateway.core.errors import BeyondBounds
from gateway.wire.formats.responses import RESPONSES
from gateway.wire.formats.responses.history import STORED_HISTORY
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import Expanded, StoredNames

_FIRST = b'{"model":"m","input":"first"}'


def make_memory(max_bytes: int, max_body_bytes: int = 1 << 20) -> StoredResponses:
    return StoredResponses(make_recognizer(), max_bytes, max_body_bytes)


def make_recognizer() -> Recognizer:
    return Recognizer(1 << 20, 1 << 20, 8)


def understand(
    memory: StoredResponses, body: bytes, tenant: str = "t", upstream: str = "u"
) -> tuple[Received, OnEvent | None]:
    received = make_recognizer().recognize(tenant, RESPONSES, body)
    return asyncio.run(memory.write_out(received, STORED_HISTORY, upstream, Lanes()))


def write_out(memory: StoredResponses, body: bytes, tenant: str = "t", upstream: str = "u") -> bytes:
    """The body as it is understood."""
    return understand(memory, body, tenant, upstream)[0].body.data


def answer(memory: StoredResponses, body: bytes, name: str, tenant: str = "t", text: str = "said") -> bytes:
    """One exchange; the body as it was understood."""
    item = {"type": "message", "id": f"msg_{name}", "role": "assistant", "content": text}
    response = {"object": "response", "id": name, "status": "completed", "output": [item]}
    received, on_event = understand(memory, body, tenant)
    assert on_event is not None
    on_event(SseEvent("", json.dumps(response).encode()))
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
        received, on_event = understand(memory, body, tenant="v")
        assert received.body.data is body and on_event is None


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
    received, on_event = understand(memory, body)
    assert read_input(received.body.data) == ["first", "said", "on"]
    assert on_event is None


def test_an_opaque_item_is_not_a_name_and_is_not_written_out() -> None:
    expanded: list[bytes] = []

    def expand(data: bytes, names: StoredNames) -> Expanded | None:
        expanded.append(data)
        return None

    history = replace(STORED_HISTORY, expand=expand)
    opaque = b'{"input":[{"type":"compaction","encrypted_content":"x"}]}'
    named = b'{"input":[{"type":"item_reference","id":"rs_1"}]}'
    for body in (opaque, named):
        received = make_recognizer().recognize("t", RESPONSES, body)
        asyncio.run(make_memory(1 << 20).write_out(received, history, "u", Lanes()))
    assert expanded == [named]


def test_a_request_that_names_more_than_a_body_may_hold_is_beyond_bounds() -> None:
    memory = make_memory(1 << 20, max_body_bytes=2_000)
    answer(memory, b'{"model":"m","input":"first"}', "resp_1", text="x" * 3_000)
    reference = b'{"type":"item_reference","id":"msg_resp_1"}'
    for fields in (b'"previous_response_id":"resp_1","input":"second"', b'"input":[%s]' % reference):
        with pytest.raises(BeyondBounds, match="what it names"):
            write_out(memory, b'{"model":"m",%s}' % fields)
