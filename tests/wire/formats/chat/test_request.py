from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Unreadable
from gateway.core.history.message import Call
from gateway.wire.formats.chat.request import parse_body, parse_message
from gateway.wire.request import message_key
from tests.builders.chat import JSON, conversations, render_message, texts

_USER: JSON = {"role": "user", "content": "Look."}
_CALLS: list[JSON] = [
    {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"n": 1, "p": "é"}'}},
    {"id": "b", "type": "function", "function": {"name": "skill", "arguments": "{}"}},
]
_ASSISTANT: JSON = {"role": "assistant", "content": "I look.", "tool_calls": _CALLS}
_RESULT: JSON = {"role": "tool", "tool_call_id": "a", "content": "done"}
_IMAGE: JSON = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def fingerprint(message: JSON, tenant: bytes = b"t") -> bytes:
    raw = render_message(message)
    return parse_message(raw, message_key(raw, tenant)).fingerprint


def text_part(text: str, **fields: Any) -> JSON:
    return {"type": "text", "text": text, **fields}


def with_arguments(arguments: str) -> JSON:
    function = {**_CALLS[0]["function"], "arguments": arguments}
    return {**_ASSISTANT, "tool_calls": [{**_CALLS[0], "function": function}, _CALLS[1]]}


# Changes that real clients make between two requests of one conversation.
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
def test_changes_that_clients_make_do_not_change_the_fingerprint(one: JSON, other: JSON) -> None:
    assert fingerprint(one) == fingerprint(other)


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
def test_other_content_has_another_fingerprint(one: JSON, other: JSON) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_space_around_a_removed_reminder_does_not_matter() -> None:
    parts = [text_part("<system-reminder>x</system-reminder>"), text_part("Look.\n")]
    assert fingerprint({**_USER, "content": parts}) == fingerprint({**_USER, "content": parts[1:]})


@given(texts(), texts())
def test_results_share_a_fingerprint_only_if_they_are_equal(one: str, other: str) -> None:
    fingerprints = {
        fingerprint({"role": "tool", "tool_call_id": "a", "content": text}) for text in (one, other)
    }
    assert len(fingerprints) == len({one, other})


@given(conversations(min_turns=1), st.integers(0, 3))
def test_the_spelling_of_a_message_changes_only_its_key(messages: list[JSON], style: int) -> None:
    for message in messages:
        one, other = render_message(message), render_message(message, style)
        a, b = (parse_message(raw, message_key(raw, b"t")) for raw in (one, other))
        assert (a.fingerprint, a.role, a.calls, a.results) == (b.fingerprint, b.role, b.calls, b.results)
        assert (a.key == b.key) == (one == other)


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
def test_an_invalid_message_is_unreadable(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        parse_message(raw, b"t")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (b"", ""),
        (b'"max_tokens":5,', "max_tokens"),
        (b'"max_completion_tokens":5,', "max_completion_tokens"),
        (b'"max_completion_tokens":null,', ""),
    ],
)
def test_the_limit_keeps_the_key_that_the_client_uses(fields: bytes, expected: str) -> None:
    body = parse_body(b"{" + fields + b'"messages":[]}')
    assert body.envelope.requested_key == expected
