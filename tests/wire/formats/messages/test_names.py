import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Unreadable
from gateway.wire.formats.messages.names import find_given_names, find_used_names
from gateway.wire.sse import SseEvent


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]} | fields).encode()


def continued(name: object) -> dict[str, object]:
    return {"type": "continue", "previous_message_id": name}


def test_the_response_that_is_continued_is_named() -> None:
    assert find_used_names(body(thread=continued("msg_1"))) == {"messages/msg_1"}


@pytest.mark.parametrize(
    "data",
    [
        body(),
        body(thread={"type": "create"}),
        body(thread=None),
        body(thread=continued(None)),
        # Only compared with, never read from.
        body(diagnostics={"previous_message_id": "msg_1"}),
        body(messages=[{"role": "user", "content": '"thread": {"previous_message_id": "msg_1"}'}]),
        b"not json",
    ],
)
def test_other_requests_name_nothing(data: bytes) -> None:
    assert find_used_names(data) == set()


@pytest.mark.parametrize(
    "data",
    [
        body(thread=continued("msg_1")).replace(b"previous", b"previou\\u0073"),
        body(THREAD=continued("msg_1")),
        body(thread={"Previous_Message_Id": "msg_1"}),
    ],
)
def test_a_name_in_another_spelling_is_a_name(data: bytes) -> None:
    assert find_used_names(data) == {"messages/msg_1"}


@pytest.mark.parametrize(
    "data",
    [
        body(thread=continued(7)),
        body(thread=continued("msg_1"))[:-1],
        body(thread=continued("msg_1"))[:-1] + b',"thread":null}',
        body(thread=continued("msg_1")).decode().encode("utf-16"),
    ],
)
def test_a_body_that_may_hide_a_name_is_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable):
        find_used_names(data)


def test_a_response_gives_its_id_with_its_first_event() -> None:
    started = b'{"type":"message_start","message":{"id":"msg_1","content":[]}}'
    assert find_given_names(SseEvent("message_start", started)) == {"msg_1"}
    whole = b'{"type":"message","id":"msg_2","content":[{"type":"tool_use","id":"toolu_1"}]}'
    assert find_given_names(SseEvent("", whole)) == {"msg_2"}
    for other in (b'{"type":"content_block_start","id":"x"}', b'{"type":"error"}', b"{", b"[]"):
        assert find_given_names(SseEvent("", other)) == set()
    assert find_given_names(SseEvent("content_block_start", started)) == set()


@given(st.binary())
def test_no_event_raises(data: bytes) -> None:
    find_given_names(SseEvent("message_start", data))
