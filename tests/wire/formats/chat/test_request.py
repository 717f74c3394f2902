import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Unreadable
from gateway.core.history.message import Call
from gateway.wire.formats.chat.request import parse_body, parse_message
from gateway.wire.request import RequestBody, message_key, parse_continuation
from tests.builders.chat import JSON, bodies, conversations, frames, render, render_message, texts

_USER: JSON = {"role": "user", "content": "Look."}
_CALLS: list[JSON] = [
    {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"n": 1, "p": "é"}'}},
    {"id": "b", "type": "function", "function": {"name": "skill", "arguments": "{}"}},
]
_ASSISTANT: JSON = {"role": "assistant", "content": "I look.", "tool_calls": _CALLS}
_RESULT: JSON = {"role": "tool", "tool_call_id": "a", "content": "done"}
_IMAGE: JSON = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def digest(message: JSON, tenant: bytes = b"t") -> bytes:
    raw = render_message(message)
    return parse_message(raw, message_key(raw, tenant)).fingerprint


def text_part(text: str, **fields: Any) -> JSON:
    return {"type": "text", "text": text, **fields}


def with_arguments(arguments: str) -> JSON:
    function = {**_CALLS[0]["function"], "arguments": arguments}
    return {**_ASSISTANT, "tool_calls": [{**_CALLS[0], "function": function}, _CALLS[1]]}


# What real clients change between two requests of one conversation (DESIGN §3, FACTS §2).
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_USER, {**_USER, "content": [text_part("Look.")]}),
        (_USER, {**_USER, "content": [text_part("Look.", cache_control={"type": "ephemeral"})]}),
        (_USER, {**_USER, "cache_control": {"type": "ephemeral"}}),
        (_USER, {**_USER, "content": [text_part("Lo"), text_part("ok.")]}),
        (_USER, {**_USER, "id": "msg_1", "status": "completed"}),
        (_USER, {"content": "Look.", "role": "user"}),
        (
            _USER,
            {**_USER, "content": [text_part("<system-reminder>x</system-reminder>"), text_part("Look.")]},
        ),
        (_USER, {**_USER, "content": "Look.\n<environment_details>Monday</environment_details>"}),
        (_USER, {**_USER, "name": None}),
        ({**_USER, "content": [_IMAGE]}, {**_USER, "content": [{**_IMAGE, "cache_control": {"ttl": "1h"}}]}),
        ({"role": "system", "content": "x"}, {"role": "developer", "content": "x"}),
        (_ASSISTANT, {**_ASSISTANT, "reasoning_content": "hm", "reasoning_details": [{"text": "hm"}]}),
        (_ASSISTANT, {**_ASSISTANT, "reasoning": "hm", "thinking_blocks": [{}]}),
        (_ASSISTANT, {**_ASSISTANT, "refusal": None, "annotations": [], "logprobs": None}),
        (_ASSISTANT, {**_ASSISTANT, "name": "coder", "provider_specific_fields": {"x": 1}}),
        (_ASSISTANT, {**_ASSISTANT, "function_call": None, "audio": None}),
        (_ASSISTANT, with_arguments('{"p":"\\u00e9","n":1}')),
        (_ASSISTANT, with_arguments('{\n  "n": 1,\n  "p": "é"\n}')),
        ({**_ASSISTANT, "content": None}, {**_ASSISTANT, "content": ""}),
        ({**_ASSISTANT, "content": None}, {"role": "assistant", "tool_calls": _CALLS}),
        ({**_ASSISTANT, "content": ""}, {**_ASSISTANT, "content": []}),
        ({"role": "assistant", "content": "x"}, {"role": "assistant", "content": "x", "tool_calls": None}),
        ({"role": "assistant", "content": "x"}, {"role": "assistant", "content": "x", "tool_calls": []}),
        (_RESULT, {**_RESULT, "name": "look"}),
        (_RESULT, {**_RESULT, "content": [text_part("done")]}),
        (_RESULT, {**_RESULT, "content": [text_part("done", cache_control={"type": "ephemeral"})]}),
    ],
)
def test_what_clients_change_on_the_way_changes_no_digest(one: JSON, other: JSON) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_USER, {**_USER, "content": "look."}),
        (_USER, {**_USER, "content": "Look, please."}),
        (_USER, {**_USER, "role": "assistant"}),
        (_USER, {**_USER, "role": "wizard"}),
        ({**_USER, "role": "wizard"}, {**_USER, "role": "witch"}),
        (_USER, {**_USER, "name": "Ann"}),
        (_USER, {**_USER, "unknown": 1}),
        (_USER, {**_USER, "content": [text_part("Look."), _IMAGE]}),
        (_USER, {**_USER, "content": [text_part("Look."), {"type": "unknown"}]}),
        ({**_USER, "content": [_IMAGE]}, {**_USER, "content": [{**_IMAGE, "image_url": {"url": "data:,B"}}]}),
        (_USER, {**_USER, "content": "<b>x</b>Look."}),
        (_ASSISTANT, {**_ASSISTANT, "tool_calls": _CALLS[:1]}),
        (_ASSISTANT, {**_ASSISTANT, "tool_calls": _CALLS[::-1]}),
        (_ASSISTANT, {**_ASSISTANT, "tool_calls": [{**_CALLS[0], "id": "c"}, _CALLS[1]]}),
        (_ASSISTANT, with_arguments('{"n": 2, "p": "é"}')),
        (_ASSISTANT, with_arguments('{"n": "1", "p": "é"}')),
        (_ASSISTANT, {**_ASSISTANT, "refusal": "no"}),
        (_ASSISTANT, {**_ASSISTANT, "function_call": {"name": "f", "arguments": "{}"}}),
        (_ASSISTANT, {**_ASSISTANT, "content": "<system-reminder>x</system-reminder>I look."}),
        (_RESULT, {**_RESULT, "tool_call_id": "b"}),
        (_RESULT, {**_RESULT, "tool_call_id": ""}),
        (_RESULT, {**_RESULT, "content": "don"}),
        (_RESULT, {**_RESULT, "content": "<system-reminder>x</system-reminder>done"}),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "new", "do": {"x": 1}}]},
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "new", "do": {"x": 2}}]},
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"input": "x"}}]},
            {"role": "assistant", "tool_calls": [{"id": "a", "type": "custom", "custom": {"input": "y"}}]},
        ),
    ],
)
def test_what_says_something_else_has_another_digest(one: JSON, other: JSON) -> None:
    assert digest(one) != digest(other)


def test_space_around_a_text_does_not_matter_once_its_reminder_is_gone() -> None:
    parts = [text_part("<system-reminder>x</system-reminder>"), text_part("Look.\n")]
    assert digest({**_USER, "content": parts}) == digest({**_USER, "content": parts[1:]})


@given(texts(), texts())
def test_texts_share_a_digest_only_if_they_are_equal_but_for_blocks(one: str, other: str) -> None:
    digests = {digest({"role": "tool", "tool_call_id": "a", "content": text}) for text in (one, other)}
    assert len(digests) == len({one, other})


@given(conversations(min_turns=1), st.integers(0, 3))
def test_how_a_message_is_written_changes_its_key_at_most(messages: list[JSON], style: int) -> None:
    for message in messages:
        one, other = render_message(message), render_message(message, style)
        a, b = (parse_message(raw, message_key(raw, b"t")) for raw in (one, other))
        assert (a.fingerprint, a.role, a.calls, a.results) == (b.fingerprint, b.role, b.calls, b.results)
        assert (a.key == b.key) == (one == other)


def test_two_tenants_never_share_a_key() -> None:
    raw = render_message(_USER)
    assert message_key(raw, b"t") != message_key(raw, b"u")
    assert parse_message(raw, message_key(raw, b"t")).key == message_key(raw, b"t")


@pytest.mark.parametrize(
    ("message", "role", "calls", "results", "has_media"),
    [
        (_USER, "user", (), (), False),
        ({**_USER, "content": [_IMAGE]}, "user", (), (), True),
        ({"role": "developer", "content": "x"}, "system", (), (), False),
        (_ASSISTANT, "assistant", (Call("a", "look"), Call("b", "skill")), (), False),
        (_RESULT, "tool", (), ("a",), False),
        ({"role": "tool", "content": "x"}, "tool", (), ("",), False),
        ({"role": "function", "name": "f", "content": "x"}, "tool", (), ("",), False),
        ({"role": "wizard", "content": 7}, "other", (), (), True),
        ({"role": "assistant", "tool_calls": [{"id": 7}]}, "assistant", (Call("7", ""),), (), False),
    ],
)
def test_the_facts_of_a_message(
    message: JSON, role: str, calls: tuple[Call, ...], results: tuple[str, ...], has_media: bool
) -> None:
    facts = parse_message(render_message(message), b"t")
    found = (facts.role, facts.calls, facts.results, facts.has_media)
    assert found == (role, calls, results, has_media)
    assert facts.size_bytes == len(render_message(message))


@pytest.mark.parametrize(
    "raw",
    [
        b"1",
        b"[]",
        b"{}",
        b'{"role":null}',
        b'{"role":["user"]}',
        b'{"role":"user","content":NaN}',
        b'{"role":"user","content":"\xff"}',
        b'{"role":"assistant","tool_calls":[1]}',
        b'{"role":"user","content":' + b"[" * 9_999 + b"]" * 9_999 + b"}",
    ],
)
def test_a_message_that_is_not_one_is_unreadable(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        parse_message(raw, b"t")


def _list_raw_fields(body: RequestBody) -> list[bytes]:
    envelope = body.envelope
    return [
        body.field(envelope.requested_slice),
        body.field(envelope.stream_options_slice),
        body.field(envelope.tools_slice),
    ]


def parse(fields: str) -> RequestBody:
    """The same fields before and behind the messages must read the same."""
    front = parse_body(b"{" + fields.encode() + b',"messages":[{"role":"user"}]}')
    back = parse_body(b'{"messages":[{"role":"user"}],' + fields.encode() + b"}\n")
    assert _list_raw_fields(front) == _list_raw_fields(back)
    return back


def test_the_envelope_is_what_stands_around_the_messages() -> None:
    body = parse(
        '"model":"toy","stream":true,"max_tokens":7,"stream_options":{"include_usage":true},"tools":[1]'
    )
    envelope = body.envelope
    assert (envelope.model, envelope.is_streaming, envelope.wants_usage) == ("toy", True, True)
    assert (envelope.requested_tokens, envelope.requested_key) == (7, "max_tokens")
    assert body.field(envelope.requested_slice) == b"7"
    assert body.field(envelope.stream_options_slice) == b'{"include_usage":true}'
    assert body.field(envelope.tools_slice) == b"[1]"
    assert envelope.tools and envelope.tools != parse('"tools":[2]').envelope.tools


@pytest.mark.parametrize(
    ("fields", "tokens", "key"),
    [
        ('"max_tokens":7,"max_completion_tokens":9', 9, "max_completion_tokens"),
        ('"max_tokens":7,"max_completion_tokens":null', 7, "max_tokens"),
        ('"max_tokens":0', None, ""),
        ('"max_tokens":-1', None, ""),
        ('"max_tokens":true', None, ""),
        ('"max_tokens":"7"', None, ""),
        ('"max_tokens":7.5', None, ""),
        ('"":7', None, ""),
        ('"x":7', None, ""),
    ],
)
def test_the_reply_that_is_asked_for(fields: str, tokens: int | None, key: str) -> None:
    envelope = parse(fields).envelope
    assert (envelope.requested_tokens, envelope.requested_key) == (tokens, key)
    assert (envelope.requested_slice is None) == (tokens is None)


@pytest.mark.parametrize(
    "fields",
    [
        '"stream":1,"stream_options":[],"model":7,"tools":null',
        '"stream":"true","stream_options":null',
        '"stream":null',
    ],
)
def test_fields_of_odd_types_say_nothing(fields: str) -> None:
    envelope = parse(fields).envelope
    found = (envelope.model, envelope.is_streaming, envelope.wants_usage, envelope.tools)
    assert found == ("", False, False, b"")


@pytest.mark.parametrize("value", ["1e400", '"\xff"'])
def test_an_envelope_field_that_we_need_and_cannot_read_makes_the_body_unreadable(value: str) -> None:
    with pytest.raises(Unreadable):
        parse_body(b'{"messages":[],"model":' + value.encode("latin-1") + b"}")


@given(bodies())
def test_every_message_lies_where_its_place_says(body: bytes) -> None:
    parsed = parse_body(body)
    expected = json.loads(body)["messages"]
    assert [json.loads(parsed.raw(index)) for index in range(len(parsed.places))] == expected
    assert parsed.data[parsed.inside_end : parsed.inside_end + 1] == b"]"


@given(conversations(), frames(), st.data())
def test_a_continuation_is_the_body_read_whole(messages: list[JSON], frame: int, data: st.DataObject) -> None:
    before = parse_body(render(messages, frame))
    keep = data.draw(st.integers(1, len(messages)))
    grown = render([*messages[:keep], *data.draw(st.lists(st.just(_USER), max_size=2))], frame)
    assert parse_continuation(before, keep, grown) == parse_body(grown)


@pytest.mark.parametrize("tail", [b'],"model":"b"}', b"]}", b'],"model":"a" }', b"]"])
def test_another_envelope_is_no_continuation(tail: bytes) -> None:
    start = b'{"messages":[{"role":"user"}'
    before = parse_body(start + b'],"model":"a"}')
    with pytest.raises(Unreadable):
        parse_continuation(before, 1, start + tail)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (b"", ""),
        (b'"max_tokens":5,', "max_tokens"),
        (b'"max_completion_tokens":5,', "max_completion_tokens"),
        (b'"max_completion_tokens":null,', ""),
    ],
)
def test_the_limit_has_the_name_that_the_client_uses(fields: bytes, expected: str) -> None:
    body = parse_body(b"{" + fields + b'"messages":[]}')
    assert body.envelope.requested_key == expected
