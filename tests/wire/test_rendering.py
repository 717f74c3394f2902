"""What the gateway writes itself: marked messages, summaries, errors, and responses of its own."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import RequestRefused
from gateway.core.history.pivot import Mark, Pivot
from gateway.wire.format import LocalResponse
from gateway.wire.reader import ResponseReader, SummaryReader
from gateway.wire.registry import FORMATS, find_format, render_error, without_version
from gateway.wire.responses import BLANK_SCREENSHOT
from tests.builders.chat import rewrite, rewrite_somehow
from tests.builders.messages import IMAGE, MARK, result, text_block
from tests.decisions.builders import PLACEHOLDER, QUESTION, RESUME, batches, make_pivot, pivots
from tests.examples import examples
from tests.toy.validity import Rules
from tests.toy.validity_messages import count_marks
from tests.wire.recorded import parse_stream
from tests.wire.shapes import JSON, LONG, SHAPES, Shape, in_each_format, say

# Whole conversations are slow to draw.
few = examples(20, exhaustive=40)
_FOREIGN = Rules(foreign_secrets=True, later_system=True)


@few
@in_each_format
@given(data=st.data())
def test_a_rewritten_body_is_valid_and_what_is_kept_keeps_its_bytes(
    shape: Shape, data: st.DataObject
) -> None:
    received = shape.read(data.draw(shape.bodies(min_turns=1)))
    _, pivot, marks, sent = rewrite_somehow(data, received)
    assert shape.find_violation(shape.load(received.body.data), _FOREIGN) is None
    assert shape.find_violation(shape.load(sent), _FOREIGN) is None
    after = shape.read(sent)
    marked = {mark.position for batch in marks for mark in batch.marks}
    start, end = pivot.covers if pivot else 0, len(received.conversation.messages)
    shift = len(after.conversation.messages) - end
    for position in range(start, end):
        old, new = received.raw(position), after.raw(position + shift)
        if position not in marked:
            assert new == old
            continue
        if received.conversation.messages[position].results:
            frames = {shape.wire.parse_message(raw, b"").split[:32] for raw in (old, new)}
            assert len(frames) == 1 or b"computer_call" in old
    body = received.body
    tail = body.data[body.places[-1].end :]
    assert sent.startswith(body.data[: body.places[0].start]) and sent.endswith(tail)
    if shape.name == "messages":
        roles = [message["role"] for message in shape.values(sent)]
        assert all(role == ("user", "assistant")[at % 2] for at, role in enumerate(roles))
        assert count_marks(shape.values(sent)[-1]) == count_marks(shape.values(body.data)[-1])


@few
@in_each_format
@given(data=st.data())
def test_the_rewrite_of_a_longer_history_begins_with_the_rewrite_of_the_shorter_one(
    shape: Shape, data: st.DataObject
) -> None:
    frame, messages = data.draw(st.integers(0, 2)), data.draw(shape.conversations(min_turns=2))
    more = [*messages, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "More."}]
    shorter, whole = shape.read(shape.render(messages, frame)), shape.read(shape.render(more, frame))
    pivot = data.draw(pivots(shorter.conversation))
    marks = data.draw(batches(shorter.conversation))
    first, second = (shape.read(rewrite(received, pivot, marks)) for received in (shorter, whole))
    raws = [[sent.body.raw(at) for at in range(len(sent.body.places))] for sent in (first, second)]
    assert raws[1][: len(raws[0])] == raws[0]


def mark(name: str, message: object, keep_chars: int | None = None) -> Any:
    raw = FORMATS[name].render_marked(json.dumps(message).encode(), Mark(0, keep_chars), PLACEHOLDER)
    return json.loads(raw)


def chat_result(content: object) -> JSON:
    return {"role": "tool", "content": content, "tool_call_id": "a"}


def user(*blocks: object) -> JSON:
    return {"role": "user", "content": list(blocks)}


def output(kind: str, value: object) -> JSON:
    return {"type": f"{kind}_output", "call_id": "a", "id": "x_1", "output": value}


_PICTURE = {"type": "image_url", "image_url": {"url": "data:,x"}}
_CLEARED = [text_block(PLACEHOLDER)]
_INPUT_CLEARED = [{"type": "input_text", "text": PLACEHOLDER}]
_SCREEN = {"type": "computer_screenshot", "image_url": "data:image/png;base64," + "A" * 400}
_SHELL = {"stdout": "x" * 400, "stderr": "y", "outcome": {"type": "exit", "exit_code": 1}}
_TOOLS_FOUND = {"type": "tool_search_output", "call_id": "a", "tools": [{"name": "x"}]}


@pytest.mark.parametrize(
    ("name", "message", "cleared"),
    [
        ("chat", chat_result("a"), chat_result(PLACEHOLDER)),
        ("chat", chat_result([text_block("a"), _PICTURE]), chat_result(_CLEARED)),
        ("chat", chat_result(None), chat_result(PLACEHOLDER)),
        ("chat", chat_result(7), chat_result(PLACEHOLDER)),
        ("messages", user(result(content=LONG)), user(result(content=PLACEHOLDER))),
        ("messages", user(result(content=[text_block(LONG, **MARK), IMAGE])), user(result(content=_CLEARED))),
        ("messages", user(result(content=[IMAGE])), user(result(content=_CLEARED))),
        (
            "messages",
            user(result("b", LONG, is_error=True, **MARK), result(content="ok"), text_block(LONG), IMAGE),
            user(
                result("b", PLACEHOLDER, is_error=True, **MARK), result(content="ok"), text_block(LONG), IMAGE
            ),
        ),
        ("messages", user(result(content="")), user(result(content=""))),
        ("messages", user(result(content=[])), user(result(content=[]))),
        ("responses", output("function_call", LONG), output("function_call", PLACEHOLDER)),
        (
            "responses",
            output("function_call", [{"type": "input_text", "text": "x"}, {"type": "input_image"}]),
            output("function_call", _INPUT_CLEARED),
        ),
        ("responses", output("custom_tool_call", LONG), output("custom_tool_call", PLACEHOLDER)),
        (
            "responses",
            output("shell_call", [_SHELL, _SHELL]),
            output("shell_call", [{**_SHELL, "stdout": PLACEHOLDER, "stderr": ""}] * 2),
        ),
        (
            "responses",
            output("computer_call", _SCREEN),
            output("computer_call", {"type": "computer_screenshot", "image_url": BLANK_SCREENSHOT}),
        ),
        ("responses", _TOOLS_FOUND, {**_TOOLS_FOUND, "tools": []}),
    ],
)
def test_a_cleared_result_keeps_its_container_and_all_other_fields(
    name: str, message: JSON, cleared: JSON
) -> None:
    assert mark(name, message) == cleared


_TEXT, _CUT = "a" * 40 + "b" * 40, "a" * 32 + "\n[... 16 of 80 characters cut ...]\n" + "b" * 32


@pytest.mark.parametrize(
    ("name", "message", "shortened"),
    [
        ("chat", chat_result(_TEXT), chat_result(_CUT)),
        (
            "chat",
            chat_result([text_block(_TEXT, **MARK), _PICTURE, text_block("c")]),
            chat_result([text_block(_CUT, **MARK), _PICTURE, text_block("c")]),
        ),
        (
            "messages",
            user(result(content=_TEXT), text_block(_TEXT)),
            user(result(content=_CUT), text_block(_TEXT)),
        ),
        (
            "messages",
            user(result(content=[text_block(_TEXT), IMAGE])),
            user(result(content=[text_block(_CUT), IMAGE])),
        ),
        ("messages", user(text_block(_TEXT), IMAGE), user(text_block(_CUT), IMAGE)),
        ("responses", output("function_call", _TEXT), output("function_call", _CUT)),
        (
            "responses",
            output("shell_call", [{**_SHELL, "stdout": _TEXT}]),
            output("shell_call", [{**_SHELL, "stdout": _CUT}]),
        ),
        ("responses", output("computer_call", _SCREEN), output("computer_call", _SCREEN)),
        (
            "responses",
            user({"type": "input_text", "text": _TEXT}),
            user({"type": "input_text", "text": _CUT}),
        ),
        ("responses", _TEXT, _CUT),
    ],
)
def test_texts_are_cut_in_the_middle_and_attachments_stay(
    name: str, message: object, shortened: object
) -> None:
    assert mark(name, message, 64) == shortened


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("chat", b'{ "role" : "tool", "content" : "short" }'),
        ("chat", b'{ "role" : "tool", "content" : [ {"type":"text","text":"short"}, 7 ] }'),
        ("chat", b'{ "role" : "tool", "content" : null }'),
        ("messages", b'{ "role":"user", "content":[ {"type":"tool_result","tool_use_id":"a"}] }'),
        ("responses", b'{ "type":"mcp_approval_response", "approval_request_id":"a"}'),
        ("responses", b'{ "type":"of_tomorrow", "text":"%s"}' % LONG.encode()),
        ("responses", b'{ "type":"function_call", "call_id":"a", "arguments":"%s"}' % LONG.encode()),
    ],
)
def test_a_message_with_nothing_to_cut_keeps_its_bytes(name: str, raw: bytes) -> None:
    assert FORMATS[name].render_marked(raw, Mark(0, 64), PLACEHOLDER) == raw


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("chat", b'{"role":"tool","content":"%s","x":1.10,"y":12345678901234567890123,"z":"\\u00e9"}'),
        (
            "messages",
            b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"%s","n":1e400},'
            b'{"type":"text","text":"a","x":1.10}],"y":10000000000000000001}',
        ),
        ("responses", b'{"type":"function_call_output","x":1.10,"output":"%s","call_id":"a"}'),
    ],
)
def test_kept_fields_of_a_cleared_message_keep_their_bytes(name: str, raw: bytes) -> None:
    marked = FORMATS[name].render_marked(raw % LONG.encode(), Mark(0), "-")
    assert marked == raw % b"-"
    assert FORMATS[name].render_marked(marked, Mark(0), "-") == marked


@in_each_format
def test_roles_alternate_around_a_summary(shape: Shape) -> None:
    conversation = shape.read(shape.render(shape.talk, 0)).conversation
    led, asked = make_pivot(conversation, 4), make_pivot(conversation, 4, opening_end=0)
    silent = make_pivot(conversation, 4, resume="")

    def render(pivot: Pivot, role: str) -> list[tuple[str, str]]:
        found = json.loads(b"[%s]" % shape.wire.render_summary(pivot, role))
        assert not any("id" in message for message in found)
        contents = [message["content"] for message in found]
        texts = [content if isinstance(content, str) else content[0]["text"] for content in contents]
        return [(message["role"], text) for message, text in zip(found, texts, strict=True)]

    told, resumed = ("assistant", led.summary), ("user", RESUME)
    assert render(led, "user") == [told]
    assert render(led, "assistant") == render(led, "system") == [told, resumed]
    assert render(asked, "user") == [("user", QUESTION), told]
    assert render(asked, "assistant") == [("user", QUESTION), told, resumed]
    assert render(silent, "assistant") == [told, ("user", "(end of the summary)")]


@in_each_format
def test_turns_stand_between_others_as_messages_of_the_format(shape: Shape) -> None:
    written = json.loads(
        b"[%s]" % shape.wire.write_turns([("user", "What was it?"), ("assistant", "It is x.")])
    )
    assert [item["role"] for item in written] == ["user", "assistant"] and "It is x." in json.dumps(written)
    request = json.loads(shape.render(shape.talk, 0))
    request[shape.array] = [*written, say("user", "So?")]
    assert shape.find_violation(request) is None


def test_a_summary_in_messages_ends_without_space_and_is_never_empty() -> None:
    conversation = SHAPES["messages"].read(SHAPES["messages"].render(SHAPES["messages"].talk, 0)).conversation
    for summary, text in (("We looked. \n", "We looked."), ("\t", "(nothing)")):
        rendered = FORMATS["messages"].render_summary(make_pivot(conversation, 4, summary=summary), "user")
        assert json.loads(rendered) == {"role": "assistant", "content": text}


TEXTS = ("Done.", 'Zeilen\n\ndata: "é" \u2028 日本語 😀 \\', "x" * 70_000)


def answer(shape: Shape, text: str, *, is_streamed: bool) -> bytes:
    return shape.wire.render_local_response(
        LocalResponse(id="abc", model="toy", created_seconds=1_700, text=text, is_streamed=is_streamed)
    )


@in_each_format
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("text", TEXTS, ids=["short", "odd", "long"])
def test_a_response_of_our_own_is_complete_and_cost_nothing(
    shape: Shape, text: str, is_streamed: bool
) -> None:
    data = answer(shape, text, is_streamed=is_streamed)
    reader, summary = ResponseReader("", ""), SummaryReader("", "")
    reader.feed(data)
    summary.feed(data)
    reading, read = reader.finish(), summary.finish()
    assert (reading.usage, reading.has_error, reading.is_complete) == (None, False, True)
    assert reading.finish_reason in ("stop", "end_turn", "completed")
    assert (read.text, read.is_complete, read.has_tool_calls) == (text, True, False)


def events_of(shape: Shape, text: str = "Done.") -> list[Any]:
    events = parse_stream(answer(shape, text, is_streamed=True))
    values = [json.loads(event.data) for event in events if event.data != b"[DONE]"]
    if shape.name != "chat":
        assert [event.name for event in events] == [value["type"] for value in values]
    return values


def test_the_streams_of_our_own_responses() -> None:
    assert answer(SHAPES["chat"], "x", is_streamed=True).endswith(b"\n\ndata: [DONE]\n\n")
    chunks = events_of(SHAPES["chat"])
    assert [(c["choices"][0]["delta"], c["choices"][0]["finish_reason"]) for c in chunks] == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "Done."}, None),
        ({}, "stop"),
    ]
    start, opened, delta, closed, ending, stop = events_of(SHAPES["messages"])
    assert (start["message"]["content"], start["message"]["stop_reason"]) == ([], None)
    assert (opened["index"], opened["content_block"]) == (0, {"type": "text", "text": ""})
    assert delta["delta"] == {"type": "text_delta", "text": "Done."}
    assert (closed["type"], stop) == ("content_block_stop", {"type": "message_stop"})
    assert ending["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert ending["usage"] == {"output_tokens": 0}
    events = events_of(SHAPES["responses"])
    assert " ".join(event["type"].removeprefix("response.") for event in events) == (
        "created in_progress output_item.added content_part.added output_text.delta output_text.done"
        " content_part.done output_item.done completed"
    )
    assert [event["sequence_number"] for event in events] == list(range(9))
    assert {(e["item_id"], e["output_index"], e["content_index"]) for e in events[3:7]} == {("msg_abc", 0, 0)}
    assert (events[0]["response"]["status"], events[0]["response"]["output"]) == ("in_progress", [])
    whole = json.loads(answer(SHAPES["responses"], "Done.", is_streamed=False))
    assert events[-1]["response"] == whole and events[-2]["item"] == whole["output"][0]
    assert events[4]["delta"] == events[5]["text"] == "Done."


_PATHS = [
    *(("/v1/chat/completions", "chat"), ("/chat/completions", "chat")),
    *(("/v1/chat/completions?api-version=1", "chat"), ("/v1/responses", "responses")),
    *(("/v1/responses/compact", None), ("/v1/responses/resp_1", None)),
    *(("/v1/messages?beta=true", "messages"), ("/v1/messages/count_tokens", None)),
    *(("/v1/chat/completions/", "chat"), ("/v1/v1/chat/completions", "chat")),
    *(("//chat/completions?x=1", "chat"), ("/v1//chat//completions", "chat")),
    *(("//v1/v1//messages", "messages"), ("/v1/v1", None), ("/v1x/chat/completions", None)),
    *(("/x/v1/chat/completions", None), ("/v2/chat/completions", None), ("/v1", None), ("/", None)),
    ("", None),
]


@pytest.mark.parametrize(("path", "expected"), _PATHS)
def test_a_format_is_found_by_its_path(path: str, expected: str | None) -> None:
    wire_format = find_format(path)
    assert wire_format is FORMATS.get(expected or "")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", "/chat/completions"),
        ("//v1//v1/chat/completions/?a=//b/v1/", "/chat/completions?a=//b/v1/"),
        *(("/v1/v1/models", "/models"), ("//embeddings", "/embeddings")),
        *(("/v1//files/x//y/", "//files/x//y/"), ("//v1/x", "//v1/x"), ("/v1/v1/x", "/v1/x")),
        *(("/proxy/http://x/v1/y", "/proxy/http://x/v1/y"), ("/v1/v10/x", "/v10/x"), ("/v1/", "/")),
        *(("/v1?a", "?a"), ("//", "//"), ("", "")),
    ],
)
def test_slashes_and_versions_too_many_are_dropped_in_known_paths_only(path: str, expected: str) -> None:
    assert without_version(path) == expected


_REFUSED = RequestRefused(413, 'Too "large".', code="request_too_large")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/anything"])
def test_an_error_is_an_openai_object(path: str) -> None:
    kind = {"type": "invalid_request_error", "param": None, "code": "request_too_large"}
    assert json.loads(render_error(path, _REFUSED)) == {"error": {"message": 'Too "large".', **kind}}


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages/count_tokens"])
def test_an_error_on_anthropics_paths_is_an_anthropic_object(path: str) -> None:
    error = {"type": "request_too_large", "message": 'Too "large".'}
    assert json.loads(render_error(path, _REFUSED)) == {"type": "error", "error": error}
    lost = json.loads(render_error(path, RequestRefused(404, "Lost.", code="thread_not_found")))["error"]
    details = {"error_code": "thread_not_found"}
    assert lost == {"type": "not_found_error", "message": "Lost.", "details": details}
    denied = json.loads(render_error(path, RequestRefused(403, "No.", code="path_not_allowed")))["error"]
    assert "details" not in denied


_OWN = {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}
_BODIES = [
    b'{\n "error": %s, "id":7}',
    b'event: response.failed\ndata: {"type":"response.failed","response":{"error":%s}}\n\n',
    b'data: {"error":%s}\n\n',
]


def stream_error(shape: Shape, body: bytes, status: int) -> Any:
    (event,) = parse_stream(rendered := shape.wire.render_stream_error(body, status))
    assert rendered.endswith(b"\n\n") and rendered.count(b"\n\n") == 1
    kinds = {"chat": "message", "messages": "error", "responses": "response.failed"}
    assert event.name == kinds[shape.name]
    return json.loads(event.data)


@in_each_format
@pytest.mark.parametrize("body", _BODIES)
def test_a_stream_that_fails_ends_with_the_upstreams_own_error(shape: Shape, body: bytes) -> None:
    shown = stream_error(shape, body % json.dumps(_OWN).encode(), 400)
    assert shown["error"].items() >= _OWN.items() or shape.name == "responses"
    if shape.name == "messages":
        assert shown["type"] == "error"
    if shape.name == "responses":
        assert (shown["type"], shown["response"]["status"]) == ("response.failed", "failed")
        assert shown["response"]["error"] == {"code": "context_length_exceeded", "message": "too long"}
        # OpenAI's libraries raise for an `error` at the top level, whatever the name of the event.
        assert shown["error"]["message"] == "too long"


@in_each_format
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error":"text"}', b"\xff", b"[" * 9_999, b"null"])
def test_without_an_error_object_the_event_names_the_status(shape: Shape, body: bytes) -> None:
    for status, kind in ((502, "api_error"), (503, "overloaded_error")):
        error = stream_error(shape, body, status)["error"]
        assert error["message"] == f"upstream answered {status} after the stream had begun"
        assert error["type"] == (kind if shape.name == "messages" else "upstream_error")
