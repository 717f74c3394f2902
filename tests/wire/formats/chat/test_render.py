"""Each rendering alone. tests/pipeline/test_rewriter.py checks what holds for whole rewritten bodies."""

import json
from dataclasses import replace

import pytest

from gateway.core.history.pivot import Mark
from gateway.core.sizing.usage import Usage
from gateway.wire.formats.chat.render import (
    render_local_response,
    render_marked,
    render_summary,
    render_summary_request,
)
from gateway.wire.formats.chat.reply import find_reply_part
from gateway.wire.response.summary_reply import SummaryResponse
from gateway.wire.wire_format import LocalResponse, SummaryRequest
from tests.builders.chat import JSON, PLACEHOLDER, make_pivot, read, render, render_message
from tests.toy.validity import find_violation
from tests.wire.local_responses import TEXTS, make_response, read_back

_TALK: list[JSON] = [
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "More."},
]


def mark(message: JSON | bytes, keep_chars: int | None) -> bytes:
    raw = message if isinstance(message, bytes) else render_message(message)
    return render_marked(raw, Mark(0, keep_chars), PLACEHOLDER)


def test_a_cleared_string_stays_a_string_and_cleared_parts_stay_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    for content, expected in (("a", PLACEHOLDER), (parts, [{"type": "text", "text": PLACEHOLDER}])):
        message = {"role": "tool", "content": content, "tool_call_id": "a"}
        assert json.loads(mark(message, None)) == {**message, "content": expected}


@pytest.mark.parametrize("content", [b"null", b'""', b"7", b"{}"])
def test_a_cleared_message_always_has_the_placeholder(content: bytes) -> None:
    raw = b'{"role":"tool","content":' + content + b"}"
    assert json.loads(mark(raw, None))["content"] == PLACEHOLDER
    assert json.loads(mark(b'{"role":"tool"}', None))["content"] == PLACEHOLDER


def test_unknown_fields_of_a_shortened_message_keep_their_bytes() -> None:
    raw = b'{"role":"tool", "content":"abc", "x": 1.10, "y": 123456789012345678901234567890, "z": "\\u00e9"}'
    shortened = mark(raw, None)
    for value in (b"1.10", b"123456789012345678901234567890", b'"\\u00e9"'):
        assert value in shortened


def test_texts_are_cut_in_the_middle_with_a_note_and_attachments_stay() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    long, short = (
        {"type": "text", "text": "a" * 9 + "b" * 9, "cache_control": {}},
        {"type": "text", "text": "c"},
    )
    cut = "aa\n[... 14 of 18 characters cut ...]\nbb"
    shortened = json.loads(mark({"role": "tool", "content": [long, image, short]}, 4))
    assert shortened["content"] == [{**long, "text": cut}, image, short]
    assert json.loads(mark({"role": "tool", "content": "a" * 9 + "b" * 9}, 4))["content"] == cut


@pytest.mark.parametrize(
    "raw",
    [
        b'{ "role" : "tool", "content" : "short" }',
        b'{ "role" : "tool", "content" : [ {"type":"text","text":"short"}, 7 ] }',
        b'{ "role" : "tool", "content" : null }',
    ],
)
def test_a_message_with_nothing_to_cut_keeps_its_bytes(raw: bytes) -> None:
    assert mark(raw, 100) == raw


def test_a_message_that_the_client_has_cleared_keeps_its_bytes() -> None:
    raw = b'{ "role" : "tool", "content" : "' + PLACEHOLDER.encode() + b'" }'
    assert mark(raw, None) == raw


def test_roles_alternate_around_a_summary() -> None:
    conversation = read(render(_TALK)).conversation
    led, asked = make_pivot(conversation, 2), make_pivot(conversation, 2, opening_end=0)

    def roles(rendered: bytes) -> list[str]:
        return [message["role"] for message in json.loads(b"[" + rendered + b"]")]

    assert roles(render_summary(led, "user")) == ["assistant"]
    assert roles(render_summary(led, "assistant")) == ["assistant", "user"]
    assert roles(render_summary(led, "system")) == ["assistant", "user"]
    assert roles(render_summary(asked, "user")) == ["user", "assistant"]
    assert roles(render_summary(asked, "assistant")) == ["user", "assistant", "user"]


def test_without_a_resume_text_a_neutral_text_keeps_the_roles_alternating() -> None:
    silent = make_pivot(read(render(_TALK)).conversation, 2, resume="")
    messages = json.loads(b"[" + render_summary(silent, "assistant") + b"]")
    assert messages[-1] == {"role": "user", "content": "(end of the summary)"}
    assert json.loads(b"[" + render_summary(silent, "user") + b"]") == messages[:-1]


_REQUEST = SummaryRequest(
    model="toy",
    system="You summarise.",
    parts=("What did we do?", '<conversation>\n"é"\n</conversation>', "Now write."),
    output_key="max_tokens",
    cap=4_000,
    room=30_000,
)


@pytest.mark.system(3)
def test_a_summary_request_is_two_messages_without_tools() -> None:
    assert json.loads(render_summary_request(_REQUEST)) == {
        "model": "toy",
        "messages": [
            {"role": "system", "content": "You summarise."},
            {
                "role": "user",
                "content": 'What did we do?\n\n<conversation>\n"é"\n</conversation>\n\nNow write.',
            },
        ],
        "max_tokens": 4_000,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_summary_request_without_a_system_prompt_is_one_message() -> None:
    call = json.loads(render_summary_request(replace(_REQUEST, system=" ")))
    assert [message["role"] for message in call["messages"]] == ["user"]
    assert find_violation(call) is None


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_a_summary_request_is_valid(key: str) -> None:
    request = replace(_REQUEST, output_key=key)
    assert find_violation(json.loads(render_summary_request(request))) is None


@pytest.mark.parametrize(
    ("room", "expected"), [(30_000, 12_192), (10_000, 10_000), (4_000, 4_000), (100, 4_000)]
)
def test_a_model_whose_thinking_counts_gets_as_much_room_for_it_as_there_is(room: int, expected: int) -> None:
    request = replace(_REQUEST, output_key="max_completion_tokens", room=room)
    assert json.loads(render_summary_request(request))["max_completion_tokens"] == expected


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_a_local_response_is_complete_and_has_no_usage(text: str, is_streamed: bool) -> None:
    response = make_response(text, is_streamed=is_streamed)
    no_usage: Usage | None = None
    expected = SummaryResponse(
        text, "stop", has_tool_calls=False, has_error=False, is_complete=True, usage=no_usage
    )
    assert read_back(render_local_response(response), find_reply_part, is_streamed=is_streamed) == expected


def test_a_local_response_is_a_chat_completion() -> None:
    response: LocalResponse = make_response("Done.", is_streamed=False)
    message = {"role": "assistant", "content": "Done.", "refusal": None}
    assert json.loads(render_local_response(response)) == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "toy",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
    }


def test_a_streamed_local_response_is_role_text_end_and_done() -> None:
    lines = render_local_response(make_response("Done.", is_streamed=True)).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert [(c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in chunks] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Done."}, None),
        ({}, "stop"),
    ]
    assert {(c["id"], c["object"], c["model"]) for c in chunks} == {
        ("chatcmpl-abc", "chat.completion.chunk", "toy")
    }
