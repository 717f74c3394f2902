import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import BeyondBounds
from gateway.wire.formats.messages.thread import expand, find_names, list_messages, without_marks
from gateway.wire.wire_format import NamedHistory, UsedNames

_FIRST = b'{"model":"m","system":"S","tools":[{"name":"look"}],"messages":[{"role":"user","content":"a"}]}'
_SAID = b'{"role":"assistant","content":[{"type":"text","text":"said"}]}'
_ASKED = b'{"role":"user","content":"a"}'
_MARK = {"cache_control": {"type": "ephemeral"}}


class OneThread:
    """Knows one response."""

    def find_response(self, name: str) -> NamedHistory | None:
        return NamedHistory(_FIRST, [_ASKED, _SAID]) if name == "msg_1" else None

    def find_item(self, name: str) -> bytes | None:
        return None


def go_on(name: object = "msg_1", **fields: object) -> bytes:
    thread = {"type": "continue", "previous_message_id": name}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "b"}], "thread": thread}
    return json.dumps(body | fields).encode()


def test_a_continue_is_written_out_as_the_request_that_begins_a_thread() -> None:
    expanded = expand(go_on(), OneThread())
    assert expanded is not None and expanded.previous == "msg_1"
    written: Any = json.loads(expanded.data)
    assert written == {
        **json.loads(_FIRST),
        "max_tokens": 9,
        "messages": [json.loads(_ASKED), json.loads(_SAID), {"role": "user", "content": "b"}],
        "thread": {"type": "create"},
    }
    assert list_messages(expanded.own) == [b'{"role": "user", "content": "b"}']


def test_a_turn_that_is_resumed_brings_no_messages() -> None:
    expanded = expand(go_on(messages=[]), OneThread())
    assert expanded is not None
    assert json.loads(expanded.data)["messages"] == [json.loads(_ASKED), json.loads(_SAID)]


@pytest.mark.parametrize(
    "body",
    [
        go_on("msg_2"),
        go_on(7),
        # They belong to the thread; the API refuses them, too.
        go_on(system="T"),
        go_on(tools=[]),
        b'{"thread":{"type":"fork","previous_message_id":"msg_1"},"messages":[]}',
        b'{"thread":{"type":"continue"},"messages":[]}',
        b"{",
    ],
)
def test_what_is_unknown_or_not_understood_is_not_written_out(body: bytes) -> None:
    assert expand(body, OneThread()) is None


def test_too_much_is_reported() -> None:
    class TooMuch(OneThread):
        def find_response(self, name: str) -> NamedHistory | None:
            raise BeyondBounds("too much")

    with pytest.raises(BeyondBounds):
        expand(go_on(), TooMuch())


def test_the_name_of_the_response_is_found() -> None:
    assert find_names(go_on("msg_9")) == UsedNames("msg_9")
    assert find_names(b'{"messages":[],"thread":{"type":"create"}}') == UsedNames()
    assert find_names(b'{"messages":[],"thread":null}') == UsedNames()
    assert find_names(go_on(7)) is None
    assert find_names(b"[") is None


def test_a_mark_is_for_the_request_that_brings_it() -> None:
    """As the SDKs do when they send an answered message again."""
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"} | _MARK]}
    call = {"type": "tool_use", "id": "c", "name": "n", "input": {"cache_control": 1.0} | _MARK}
    for block in (result | _MARK, {"type": "text", "text": "x"} | _MARK, call):
        raw = json.dumps({"role": "user", "content": [block]}).encode()
        kept = json.loads(without_marks(raw))["content"][0]
        assert "cache_control" not in json.dumps({**kept, "input": None})
    # Arguments of a call are not looked into.
    assert kept["input"] == {"cache_control": {"type": "ephemeral"}}
    assert list_messages(b'{"messages":[%s]}' % raw) == [without_marks(raw)]


@pytest.mark.parametrize("raw", [_SAID, b'{"role":"user","content":"cache_control"}', b'"cache_control"'])
def test_a_message_without_marks_stays_as_it_is(raw: bytes) -> None:
    assert without_marks(raw) == raw


@given(st.binary())
def test_no_bytes_raise(data: bytes) -> None:
    for raw in (data, b'{"cache_control"' + data, b'{"thread":' + data):
        without_marks(raw)
        find_names(raw)
        expand(raw, OneThread())
