import json

import pytest

from gateway.bounds.lanes import Lanes
from gateway.conversations.body_reader import BodyReader
from gateway.conversations.recognizer import Recognizer
from gateway.conversations.stored_responses import StoredResponses
from gateway.core.errors import BeyondBounds, Unreadable
from gateway.state.named_turns import NamedTurns
from gateway.store.memory import MemoryStore
from gateway.wire.formats.chat import CHAT
from gateway.wire.formats.responses import RESPONSES
from gateway.wire.sse import SseEvent
from gateway.wire.structure import UNBOUNDED, BodyBounds
from tests.builders.state import make_storage


def make_reader(bounds: BodyBounds = UNBOUNDED) -> BodyReader:
    recognizer = Recognizer(1 << 20, 1 << 20, 8, bounds)
    stored = StoredResponses(recognizer, NamedTurns(make_storage(MemoryStore())), 1 << 20, 1 << 20)
    return BodyReader(recognizer, stored, Lanes())


async def test_only_a_format_with_names_listens_to_its_responses() -> None:
    reader = make_reader()
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}]}'
    received, recorder = await reader.read("t", CHAT, body, "u")
    assert received.body.data is body
    assert recorder is None
    _, recorder = await reader.read("t", RESPONSES, b'{"model":"m","input":"a"}', "u")
    assert recorder is not None


async def test_a_named_response_is_written_out() -> None:
    reader = make_reader()
    _, recorder = await reader.read("t", RESPONSES, b'{"model":"m","input":"a"}', "u")
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": "b"}
    response = {"object": "response", "id": "r", "status": "completed", "output": [item]}
    assert recorder is not None
    recorder.note(SseEvent("", json.dumps(response).encode()))
    body = b'{"model":"m","input":"c","previous_response_id":"r"}'
    received, _ = await reader.read("t", RESPONSES, body, "u")
    assert len(received.conversation.messages) == 3
    assert (await reader.read("t", RESPONSES, body, "v"))[0].body.envelope.is_partial


async def test_what_is_written_out_has_the_same_bounds() -> None:
    bounds = BodyBounds(messages=2, fields=9, values=99, depth=9)
    reader = make_reader(bounds)
    _, recorder = await reader.read("t", RESPONSES, b'{"model":"m","input":"a"}', "u")
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": "b"}
    response = {"object": "response", "id": "r", "status": "completed", "output": [item]}
    assert recorder is not None
    recorder.note(SseEvent("", json.dumps(response).encode()))
    with pytest.raises(BeyondBounds):
        await reader.read("t", RESPONSES, b'{"model":"m","input":"c","previous_response_id":"r"}', "u")


async def test_what_is_not_of_the_format_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        await make_reader().read("t", CHAT, b"{}", "u")
