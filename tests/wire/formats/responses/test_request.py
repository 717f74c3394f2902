import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from gateway.core.errors import Unreadable
from gateway.core.history.conversation import Conversation, find_open_group, find_tool_names
from gateway.core.history.message import Call, Message
from gateway.wire.formats.responses.request import parse_body, parse_message
from gateway.wire.request import message_key
from tests.builders.responses import JSON, read, render
from tests.shared_data import SHARED, requires_shared

_CLIENTS = ("codex", "codex-sub", "opencode-responses", "aisdk-responses", "py-agents", "py-pyd", "py-lc")
_USER: JSON = {"role": "user", "content": "Look."}
_CALL: JSON = {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"b": 1, "a": 2}'}
_OUTPUT: JSON = {"type": "function_call_output", "call_id": "a", "output": "found"}
_THOUGHT: JSON = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}


def read_one(item: object) -> Message:
    raw = json.dumps(item).encode()
    return parse_message(raw, message_key(raw, b""))


def fingerprint(item: object) -> bytes:
    return read_one(item).fingerprint


def converse(*items: JSON) -> Conversation:
    return read(render(items)).conversation


def test_the_envelope_has_the_same_fields_as_in_chat() -> None:
    body = parse_body(
        b'{"model":"m","instructions":"Be brief.","stream":true,"input":[{"role":"user","content":"x"}],'
        b'"tools":[{"type":"namespace","name":"n"}],"max_output_tokens": 64}'
    )
    envelope = body.envelope
    assert (envelope.model, envelope.is_streaming, envelope.wants_usage) == ("m", True, True)
    assert (envelope.requested_tokens, envelope.requested_key) == (64, "max_output_tokens")
    assert body.field(envelope.requested_slice) == b"64"
    assert body.field(envelope.system_slice) == b'"Be brief."'
    assert body.field(envelope.tools_slice) == b'[{"type":"namespace","name":"n"}]'
    assert envelope.system and envelope.tools and not envelope.is_partial


@pytest.mark.parametrize("field", ['"previous_response_id":"resp_1"', '"conversation":{"id":"conv_1"}'])
def test_a_history_stored_upstream_makes_a_request_partial(field: str) -> None:
    assert parse_body(f'{{{field},"input":"x"}}'.encode()).envelope.is_partial


@pytest.mark.parametrize(
    ("given", "expected"), [("null", False), ("[]", False), ('[{"type":"compaction"}]', True)]
)
def test_a_request_may_ask_the_upstream_to_drop_old_parts(given: str, expected: bool) -> None:
    body = f'{{"input":"x","context_management":{given}}}'
    assert parse_body(body.encode()).envelope.is_trimmed is expected


def test_a_name_that_is_null_is_not_a_name() -> None:
    assert not parse_body(
        b'{"previous_response_id":null,"input":"x","conversation":null}'
    ).envelope.is_partial


def test_a_string_is_the_same_as_one_user_message() -> None:
    text = read(b'{"model":"m","input": "Look."}')
    assert text.body.raw(0) == b'"Look."'
    assert text.conversation.chain == converse(_USER).chain


@pytest.mark.parametrize(
    "body", [b'{"input":null}', b'{"input":7}', b'{"input":[1]}', b'{"model":"m"}', b'"x"']
)
def test_a_body_without_input_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        read(body)


def test_calls_and_outputs_are_matched_by_call_id() -> None:
    assert read_one(_CALL).calls == (Call("a", "look"),)
    assert read_one(_OUTPUT).results == ("a",)
    conversation = converse(
        _USER, _THOUGHT, _CALL, {**_CALL, "call_id": "b"}, {**_OUTPUT, "call_id": "b"}, _OUTPUT
    )
    assert [message.role for message in conversation.messages] == ["user", *["assistant"] * 2, *["tool"] * 2]
    assert find_open_group(conversation) == 1
    assert find_tool_names(conversation)[3:] == [("look",), ("look",)]


def test_reasoning_is_joined_with_the_item_after_it() -> None:
    received = read(render([_USER, _THOUGHT, _CALL, _OUTPUT]))
    assert json.loads(b"[" + received.raw(1) + b"]") == [_THOUGHT, _CALL]
    assert received.conversation.chain == converse(_USER, _CALL, _OUTPUT).chain


def test_reasoning_without_a_following_item_is_a_message() -> None:
    conversation = converse(_USER, _THOUGHT, _USER)
    assert [message.role for message in conversation.messages] == ["user", "assistant", "user"]
    assert conversation.messages[1].fingerprint == fingerprint(
        {"type": "reasoning", "summary": [{"text": "x"}]}
    )


_SAME: Sequence[tuple[JSON, JSON]] = [
    (_USER, {"type": "message", "id": "msg_1", "status": "completed", **_USER}),
    (_USER, {"role": "user", "content": [{"type": "input_text", "text": "Look."}]}),
    (_USER, {"role": "user", "content": "<system-reminder>x</system-reminder>\nLook."}),
    (_CALL, {**_CALL, "id": "fc_1", "status": "completed", "arguments": '{"a":2,"b":1}'}),
    (_OUTPUT, {**_OUTPUT, "output": [{"type": "input_text", "text": "found"}], "id": "fco_1"}),
    (
        {"role": "assistant", "content": "Done."},
        {
            "type": "message",
            "role": "assistant",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}],
        },
    ),
    (
        {"type": "web_search_call", "action": {"a": 1, "b": 2}},
        {"action": {"b": 2, "a": 1}, "type": "web_search_call"},
    ),
]


@pytest.mark.parametrize(("one", "other"), _SAME)
def test_changes_that_clients_make_do_not_change_the_fingerprint(one: JSON, other: JSON) -> None:
    assert fingerprint(one) == fingerprint(other)


_DIFFERENT: Sequence[tuple[JSON, JSON]] = [
    (_USER, {**_USER, "role": "assistant"}),
    (_USER, {**_USER, "content": "look."}),
    (_CALL, {**_CALL, "call_id": "b"}),
    (_CALL, {**_CALL, "arguments": '{"a":2,"b":2}'}),
    (_CALL, {**_CALL, "namespace": "n"}),
    (_CALL, {**_CALL, "type": "custom_tool_call"}),
    (_OUTPUT, {**_OUTPUT, "output": "lost"}),
    (
        {"type": "custom_tool_call", "call_id": "a", "input": "x"},
        {"type": "custom_tool_call", "call_id": "a", "input": "y"},
    ),
    ({"type": "item_reference", "id": "a"}, {"type": "item_reference", "id": "b"}),
    ({"type": "compaction", "encrypted_content": "a"}, {"type": "compaction", "encrypted_content": "b"}),
    ({"type": "of_tomorrow", "x": 1}, {"type": "of_tomorrow", "x": 2}),
]


@pytest.mark.parametrize(("one", "other"), _DIFFERENT)
def test_other_content_has_another_fingerprint(one: JSON, other: JSON) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_nothing_up_to_a_compaction_of_the_upstream_is_ever_summarized() -> None:
    opaque = {"type": "compaction", "encrypted_content": "x"}
    conversation = converse(_USER, _CALL, _OUTPUT, opaque, _USER, _CALL, _OUTPUT)
    assert conversation.opening_end == 5


def test_a_screenshot_is_media() -> None:
    screen = {"type": "computer_screenshot", "image_url": "data:,"}
    assert read_one({"type": "computer_call_output", "call_id": "a", "output": screen}).has_media
    assert not read_one(_OUTPUT).has_media


def load_requests(client: str) -> list[dict[str, Any]]:
    files = sorted((SHARED / "data" / "captures" / client).glob("*_responses.json"))
    return [json.loads(file.read_text("utf-8"))["body"] for file in files]


def encode(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def without_reasoning_and_ids(body: dict[str, Any]) -> dict[str, Any]:
    items = [item for item in body["input"] if item.get("type") != "reasoning"]
    kept = [
        {key: value for key, value in item.items() if key != "id" or item.get("type") == "item_reference"}
        for item in items
    ]
    return {**body, "input": kept}


def goes_on(body: dict[str, Any], earlier: dict[str, Any]) -> bool:
    before, after = read(encode(earlier)).conversation, read(encode(body)).conversation
    return before.key in after.chain


@requires_shared
@pytest.mark.parametrize("client", _CLIENTS)
def test_each_recorded_request_is_read_and_continues_the_one_before(client: str) -> None:
    requests = load_requests(client)
    # The first request of opencode asks for a title; the last of codex-sub comes from a sub-agent.
    pairs = list(pairwise(requests))
    pairs = {"opencode-responses": pairs[1:], "codex-sub": pairs[:1]}.get(client, pairs)
    assert pairs
    for before, after in pairs:
        assert goes_on(after, before)
        assert goes_on(without_reasoning_and_ids(after), before)
