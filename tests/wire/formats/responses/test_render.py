import json
from typing import Any

import pytest

from gateway.core.history.pivot import Mark
from gateway.wire.formats.responses.render import (
    BLANK_SCREENSHOT,
    render_local_response,
    render_marked,
    render_stream_error,
    render_summary,
    render_summary_request,
)
from gateway.wire.response.reader import Reading, ResponseReader
from gateway.wire.wire_format import SummaryRequest
from tests.builders.chat import PLACEHOLDER, RESUME, make_pivot
from tests.builders.responses import JSON, read, render
from tests.toy.validity_responses import find_violation
from tests.wire.local_responses import TEXTS, make_response, parse_typed_events

_SCREEN = {"type": "computer_screenshot", "image_url": "data:image/png;base64," + "A" * 400}


def mark(item: object, keep_chars: int | None = None) -> Any:
    raw = render_marked(json.dumps(item).encode(), Mark(0, keep_chars), PLACEHOLDER)
    return json.loads(raw)


def output(kind: str, value: object) -> JSON:
    return {"type": f"{kind}_output", "call_id": "a", "id": "x_1", "output": value}


_CLEARED = [{"type": "input_text", "text": PLACEHOLDER}]
_SHELL = {"stdout": "x" * 400, "stderr": "y", "outcome": {"type": "exit", "exit_code": 1}}


@pytest.mark.parametrize(
    ("kind", "value", "cleared"),
    [
        ("function_call", "x" * 400, PLACEHOLDER),
        (
            "function_call",
            [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "u"}],
            _CLEARED,
        ),
        ("custom_tool_call", "x" * 400, PLACEHOLDER),
        ("local_shell_call", "x" * 400, PLACEHOLDER),
        ("shell_call", [_SHELL, _SHELL], [{**_SHELL, "stdout": PLACEHOLDER, "stderr": ""}] * 2),
        ("computer_call", _SCREEN, {"type": "computer_screenshot", "image_url": BLANK_SCREENSHOT}),
    ],
)
def test_a_cleared_output_keeps_its_container(kind: str, value: object, cleared: object) -> None:
    assert mark(output(kind, value)) == {**output(kind, value), "output": cleared}


def test_a_cleared_tool_search_has_no_tools() -> None:
    found = {"type": "tool_search_output", "call_id": "a", "tools": [{"name": "x"}]}
    assert mark(found) == {**found, "tools": []}


@pytest.mark.parametrize(
    "item",
    [
        {"type": "mcp_approval_response", "approval_request_id": "a", "approve": True},
        {"type": "compaction", "encrypted_content": "x" * 900},
        {"type": "of_tomorrow", "text": "x" * 900},
        {"role": "assistant", "content": "x" * 900},
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "x" * 900},
    ],
)
def test_an_item_with_nothing_to_shorten_keeps_its_bytes(item: JSON) -> None:
    raw = json.dumps(item, indent=1).encode()
    assert render_marked(raw, Mark(0), PLACEHOLDER) == raw
    assert render_marked(raw, Mark(0, 64), "") == raw


def test_a_screenshot_cannot_be_cut() -> None:
    raw = json.dumps(output("computer_call", _SCREEN)).encode()
    assert render_marked(raw, Mark(0, 64), "") == raw


def test_texts_in_every_container_are_cut() -> None:
    long = "x" * 400
    shell = mark(output("shell_call", [_SHELL]), 64)["output"][0]
    assert len(shell["stdout"]) < 200 and shell["stderr"] == "y"
    parts = mark(
        {"role": "user", "content": [{"type": "input_text", "text": long}, {"type": "input_image"}]}, 64
    )
    assert len(parts["content"][0]["text"]) < 200 and parts["content"][1] == {"type": "input_image"}
    assert len(mark(long, 64)) < 200
    assert mark("short", 64) == "short"


def test_kept_fields_keep_their_bytes() -> None:
    raw = b'{"type":"function_call_output","x":1.10,"output":"xxxxxxxx","call_id":"a"}'
    assert render_marked(raw, Mark(0), "-") == raw.replace(b"xxxxxxxx", b"-")


def test_a_summary_is_items_without_ids() -> None:
    conversation = read(
        render([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
    ).conversation
    pivot = make_pivot(conversation, 2)
    items = json.loads(b"[" + render_summary(pivot, "assistant") + b"]")
    assert [(item["type"], item["role"], item["content"][0]["type"]) for item in items] == [
        ("message", "assistant", "output_text"),
        ("message", "user", "input_text"),
    ]
    assert items[1]["content"][0]["text"] == RESUME
    assert all("id" not in item for item in items)


def render_request(cap: int = 1_000, room: int = 50_000, system: str = "You summarise.") -> dict[str, object]:
    request = SummaryRequest(
        model="m", system=system, parts=("history", "now"), output_key="max_output_tokens", cap=cap, room=room
    )
    return dict(json.loads(render_summary_request(request)))


def test_a_summary_request_has_no_tools_and_is_not_stored() -> None:
    request = render_request()
    assert find_violation(request) is None
    assert request.keys() == {"model", "instructions", "input", "max_output_tokens", "store", "stream"}
    assert (request["store"], request["stream"]) == (False, True)


def test_thinking_gets_at_most_half_of_the_remaining_room() -> None:
    assert render_request()["max_output_tokens"] == 1_000 + 8_192
    assert render_request(room=3_000)["max_output_tokens"] == 2_000
    assert render_request(room=100)["max_output_tokens"] == 1_000


def test_a_blank_system_prompt_is_left_out() -> None:
    assert "instructions" not in render_request(system=" ")


_OWN = {
    "message": "too long",
    "type": "invalid_request_error",
    "code": "context_length_exceeded",
    "param": "input",
}


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"error": _OWN}).encode(),
        b"event: response.failed\ndata: " + json.dumps({"response": {"error": _OWN}}).encode() + b"\n\n",
        b"event: error\ndata: " + json.dumps({**_OWN, "type": "error"}).encode() + b"\n\n",
    ],
)
def test_an_error_in_a_stream_has_the_fields_that_every_client_reads(body: bytes) -> None:
    event = render_stream_error(body, 400)
    name, data = event.removesuffix(b"\n\n").split(b"\n")
    shown = json.loads(data.removeprefix(b"data: "))
    assert name == b"event: response.failed" and shown["type"] == "response.failed"
    assert shown["response"]["status"] == "failed"
    assert shown["response"]["error"] == {"code": "context_length_exceeded", "message": "too long"}
    # OpenAI's libraries raise for an `error` at the top level, whatever the name of the event.
    assert shown["error"]["message"] == "too long"


def test_without_an_error_object_the_event_names_the_status() -> None:
    shown = json.loads(render_stream_error(b"<html>", 502).split(b"data: ")[1])
    assert shown["response"]["error"]["code"] == "upstream_error"
    assert "502" in shown["error"]["message"]


_NO_TOKENS = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def read_stream(text: str) -> list[dict[str, Any]]:
    return parse_typed_events(render_local_response(make_response(text, is_streamed=True)))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_local_response_is_complete_and_its_usage_is_empty(is_streamed: bool) -> None:
    reader = ResponseReader("text/event-stream" if is_streamed else "application/json", "")
    reader.feed(render_local_response(make_response("Done.", is_streamed=is_streamed)))
    assert reader.finish() == Reading(None, "completed", has_error=False, is_complete=True)


@pytest.mark.parametrize("text", TEXTS)
def test_a_local_response_has_one_message_and_is_not_stored(text: str) -> None:
    response = json.loads(render_local_response(make_response(text, is_streamed=False)))
    (message,) = response["output"]
    (part,) = message["content"]
    assert (response["id"], response["object"], response["status"]) == ("resp_abc", "response", "completed")
    assert (response["model"], response["store"], response["usage"]) == ("toy", False, _NO_TOKENS)
    assert (message["id"], message["type"], message["role"]) == ("msg_abc", "message", "assistant")
    assert part == {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


@pytest.mark.parametrize("text", TEXTS)
def test_the_events_of_a_streamed_local_response_build_the_same_response(text: str) -> None:
    events = read_stream(text)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(9))
    begun, whole = (
        events[0]["response"],
        json.loads(render_local_response(make_response(text, is_streamed=False))),
    )
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert events[-1]["response"] == whole
    assert events[-2]["item"] == whole["output"][0] and events[-3]["part"] == whole["output"][0]["content"][0]
    assert events[4]["delta"] == events[5]["text"] == text


def test_every_content_event_names_its_item() -> None:
    inside = read_stream("Done.")[3:7]
    assert {(e["item_id"], e["output_index"], e["content_index"]) for e in inside} == {("msg_abc", 0, 0)}
    assert read_stream("Done.")[2]["item"]["content"] == []
