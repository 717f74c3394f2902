"""How a model is asked for a summary, alone or at the end of a request, and what is read of its reply."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.format import RiddenBody, RidingRequest, SummaryRequest, read_ridden, spare_tokens
from gateway.wire.reader import MAX_TEXT_CHARACTERS, SummaryReader, SummaryResponse
from gateway.wire.reading import Piece, read_document, read_piece
from gateway.wire.registry import FORMATS
from tests.builders.messages import text_block, use
from tests.examples import examples
from tests.toy.reply import Reply
from tests.wire.recorded import cut
from tests.wire.shapes import JSON, SHAPES, TASK, THINKING, Shape, in_each_format, say

few = examples(20, exhaustive=40)
_PARTS = ("What did we do?", '<conversation>\n"é"\n</conversation>', "Now write.")
_ASKED_TEXT = "\n\n".join(_PARTS)
_REQUEST = SummaryRequest(
    model="toy", system="You summarise.", parts=_PARTS, output_key="", cap=4_000, room=30_000
)


def ask(shape: Shape, **fields: Any) -> Any:
    request = replace(_REQUEST, **{"output_key": shape.wire.output_key, **fields})
    sent = json.loads(shape.wire.render_summary_request(request))
    assert shape.find_violation(sent) is None
    return sent


@pytest.mark.system(3)
def test_a_summary_request_is_one_question_without_tools_and_is_not_stored() -> None:
    asked = {"model": "toy", "stream": True}
    assert ask(SHAPES["chat"]) == asked | {
        "messages": [say("system", "You summarise."), say("user", _ASKED_TEXT)],
        "max_tokens": 4_000,
        "stream_options": {"include_usage": True},
    }
    assert ask(SHAPES["messages"]) == asked | {
        "system": [text_block("You summarise.")],
        "messages": [say("user", _ASKED_TEXT)],
        "max_tokens": 4_000,
    }
    sent = ask(SHAPES["responses"])
    (item,) = sent.pop("input")
    assert (item["role"], item["content"]) == ("user", [{"type": "input_text", "text": _ASKED_TEXT}])
    assert sent == asked | {"instructions": "You summarise.", "max_output_tokens": 12_192, "store": False}


@in_each_format
def test_a_blank_system_prompt_is_left_out(shape: Shape) -> None:
    sent = ask(shape, system=" ")
    assert len(sent[shape.array]) == 1 and not sent.keys() & {"system", "instructions"}


def test_the_identity_blocks_of_a_client_come_first() -> None:
    sent = ask(SHAPES["messages"], identity_blocks=("I am it.",))
    assert [block["text"] for block in sent["system"]] == ["I am it.", "You summarise."]


@pytest.mark.parametrize(("room", "limit"), [(30_000, 12_192), (10_000, 7_000), (4_000, 4_000), (100, 4_000)])
def test_thinking_that_counts_gets_room_beyond_the_summary(room: int, limit: int) -> None:
    assert ask(SHAPES["responses"], room=room)["max_output_tokens"] == limit
    chat = ask(SHAPES["chat"], room=room, output_key="max_completion_tokens")
    assert chat["max_completion_tokens"] == max(4_000, min(12_192, room))
    assert ask(SHAPES["chat"], room=room)["max_tokens"] == 4_000


def read(shape: Shape, *chunks: bytes) -> SummaryResponse:
    reader = SummaryReader("", "")
    for chunk in chunks:
        reader.feed(chunk)
        while reader.is_behind:
            reader.catch_up()
    return reader.finish()


_WORDS = Reply(text="We looked.", thinking="Hm.", delta_chars=3, cached_tokens=40)


@in_each_format
def test_the_text_of_a_reply_is_read_without_its_thinking(shape: Shape) -> None:
    for body in (shape.stream(_WORDS), shape.answer(_WORDS, **THINKING)):
        assert b"Hm." in body
        found = read(shape, *cut(body, 7))
        assert (found.text, found.is_complete, found.has_tool_calls) == ("We looked.", True, False)
        assert found.usage is not None and found.usage.prompt_tokens == 100 and not found.has_error


@in_each_format
@pytest.mark.parametrize(
    ("reason", "expected"), [("stop", ("stop", "end_turn", "completed")), ("length", ("length", "max_"))]
)
def test_why_a_reply_ended_is_read(shape: Shape, reason: str, expected: tuple[str, ...]) -> None:
    reply = replace(_WORDS, finish_reason=reason)
    for body in (shape.stream(reply), shape.answer(reply)):
        assert str(read(shape, body).finish_reason).startswith(expected)


@in_each_format
def test_a_reply_that_breaks_off_is_not_complete(shape: Shape) -> None:
    stream = shape.stream(_WORDS)
    broken = stream[: stream.index(b"loo")]
    found = read(shape, broken)
    assert not found.is_complete and "We looked.".startswith(found.text)


@in_each_format
def test_a_text_above_the_bound_is_cut_and_is_an_error(shape: Shape) -> None:
    found = read(shape, shape.answer(Reply(text="x" * (MAX_TEXT_CHARACTERS + 9))))
    assert (len(found.text), found.has_error) == (MAX_TEXT_CHARACTERS, True)


_CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
_MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]}
_IS_CALL = Piece(has_calls=True)
_IS_WHOLE_CALL = Piece(is_whole=True, has_calls=True)


def delta(index: int = 0, **fields: Any) -> JSON:
    return {"choices": [{"index": index, "delta": fields}]}


def begin(kind: str) -> JSON:
    return {"type": "content_block_start", "index": 0, "content_block": {**use(), "type": kind}}


@pytest.mark.parametrize(
    ("name", "document", "expected"),
    [
        ("chat", delta(content="Hello"), Piece("Hello")),
        ("chat", delta(content=None, reasoning_content="hm"), Piece()),
        ("chat", delta(content=[{"type": "thinking", "text": "hm"}, text_block("Hello")]), Piece("Hello")),
        ("chat", delta(tool_calls=[{"index": 0}]), _IS_CALL),
        ("chat", delta(function_call={"name": "f"}), _IS_CALL),
        ("chat", delta(content="a", tool_calls=[], function_call=None), Piece("a")),
        ("chat", delta(1, content="another"), Piece()),
        ("chat", delta(1, tool_calls=[{"index": 0}]), _IS_CALL),
        ("chat", {"choices": [{"message": {"content": "Hello"}}]}, Piece("Hello", is_whole=True)),
        ("chat", {"choices": [{"message": {"tool_calls": [{"id": "a"}]}}]}, _IS_WHOLE_CALL),
        ("chat", {"choices": [{"delta": 1, "message": "odd"}, 7]}, Piece()),
        # A summary that rides has the client's tools, and those that the provider runs.
        *(("messages", begin(kind), _IS_CALL) for kind in ("tool_use", "server_tool_use", "mcp_tool_use")),
        ("messages", {"type": "message", "content": [use()]}, _IS_WHOLE_CALL),
        ("messages", {"type": "ping"}, Piece()),
        ("responses", {"type": "response.output_text.delta", "delta": "a"}, Piece("a")),
        ("responses", {"type": "response.reasoning_summary_text.delta", "delta": "a"}, Piece()),
        ("responses", {"type": "response.output_item.done", "item": _MESSAGE}, Piece("So.", is_whole=True)),
        ("responses", {"type": "response.output_item.added", "item": _CALL}, _IS_WHOLE_CALL),
        ("responses", {"type": "response.completed", "response": {"output": [_CALL]}}, _IS_WHOLE_CALL),
        ("responses", {"type": "keepalive"}, Piece()),
    ],
)
def test_what_one_document_adds_to_a_reply(name: str, document: JSON, expected: Piece) -> None:
    found = read_document(json.dumps(document).encode())
    assert found is not None and read_piece(found) == expected


def test_a_text_that_is_sent_repeatedly_counts_once() -> None:
    """Responses sends it three times; some servers of Chat repeat the message behind its deltas."""
    stream = b"".join(
        b"data: %s\n\n" % json.dumps(document).encode()
        for document in (delta(content="a"), {"choices": [{"index": 0, "message": {"content": "a"}}]})
    )
    assert read(SHAPES["chat"], stream).text == "a"


def test_a_server_may_mix_the_shapes_of_the_formats() -> None:
    message = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "b"}}
    stream = b"".join(
        b"data: %s\n\n" % json.dumps(document).encode()
        for document in (
            *(delta(content="a"), message, {"type": "response.output_text.delta", "delta": "c"}),
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        )
    )
    found = read(SHAPES["chat"], stream)
    assert (found.text, found.finish_reason, found.is_complete) == ("abc", "end_turn", True)


_LOOK = [say("user", "Look.")]
ASKED = RidingRequest(message="Sum it up.", cap_tokens=1_000, room_tokens=50_000)


def ridden(data: bytes) -> RiddenBody:
    body = read_ridden(data, "messages")
    assert body is not None
    return body


@few
@in_each_format
@given(data=st.data())
def test_what_is_ridden_begins_with_what_was_sent(shape: Shape, data: st.DataObject) -> None:
    task: Any = data.draw(st.sampled_from([TASK, [text_block(TASK) | {"type": shape.wire.text_part}]]))
    items = [*data.draw(shape.conversations(min_turns=1)), {"role": "user", "content": task}]
    body = shape.render(items, data.draw(st.integers(0, 2)))
    sent = shape.wire.ride(body, ASKED)
    assert sent is not None
    before, after = shape.load(body), shape.load(sent)
    assert after[shape.array][:-1] == before[shape.array][:-1]
    asked = json.dumps(after[shape.array][-1])
    assert after[shape.array][-1]["role"] == "user" and asked.index(TASK) < asked.index("Sum it up.")
    found = read_ridden(body, shape.array)
    assert found is not None and sent.startswith(body[: found.end - 10])
    assert after.keys() - before.keys() <= {"tool_choice", "store"}


def test_a_field_is_replaced_where_it_stands_or_added_at_the_end() -> None:
    body = ridden(b'{"a" : 1.10, "messages":[1], "b":2 }\n')
    body.set("a", "none")
    body.set("c", False)
    assert body.render() == b'{"a" : "none", "messages":[1], "b":2 ,"c":false}\n'


_LIMITS = [
    *((500, 1_000, 9_000, 1_000), (4_000, 1_000, 9_000, 4_000), (32_000, 1_000, 9_000, 9_000)),
    (None, 1_000, 9_000, None),
]


@pytest.mark.parametrize(("limit", "least", "room", "expected"), _LIMITS)
def test_a_reply_gets_room_for_the_summary_and_no_more_than_there_is(
    limit: int | None, least: int, room: int, expected: int | None
) -> None:
    fields: dict[str, Any] = {"messages": [1]} | ({"max_tokens": limit} if limit else {})
    body = ridden(json.dumps(fields).encode())
    assert body.limit_reply(("max_completion_tokens", "max_tokens"), least, room)
    assert json.loads(body.render()).get("max_tokens") == expected
    assert not ridden(b'{"messages":[1]}').limit_reply(("max_tokens",), 1_000, 999)


def test_thinking_gets_half_of_what_is_left_at_most() -> None:
    assert spare_tokens(RidingRequest(message="", cap_tokens=1_000, room_tokens=3_000)) == 1_000
    assert spare_tokens(ASKED) == 8_192
    assert spare_tokens(RidingRequest(message="", cap_tokens=1_000, room_tokens=500)) == 0


@pytest.mark.parametrize("wire_format", FORMATS.values(), ids=lambda each: each.name)
@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"messages":[1],"input":[1]}', b'{"messages":"a"}'])
def test_what_is_no_request_of_a_format_is_not_ridden(wire_format: Any, data: bytes) -> None:
    assert wire_format.ride(data, ASKED) is None


def bare(shape: Shape, **fields: Any) -> JSON:
    limit = {"max_tokens": 4_000} if shape.name == "messages" else {}
    body: JSON = {"model": "toy", shape.array: [say("user", "Look.")]}
    return body | limit | fields


def send(shape: Shape, **fields: Any) -> JSON | None:
    sent = shape.wire.ride(json.dumps(bare(shape, **fields)).encode(), ASKED)
    return shape.load(sent) if sent is not None else None


def send_surely(shape: Shape, **fields: Any) -> JSON:
    sent = send(shape, **fields)
    assert sent is not None
    return sent


_TOOLS = [{"name": "look", "parameters": {}}]
CHAT, MESSAGES, RESPONSES = (SHAPES[name] for name in ("chat", "messages", "responses"))


@in_each_format
def test_a_question_is_added_and_tools_stay_uncalled(shape: Shape) -> None:
    fields = {"tools": _TOOLS, "stream": True, "temperature": 0.2}
    sent = send_surely(shape, **fields)
    assert sent[shape.array] == [say("user", "Look.\n\nSum it up.")]
    added: dict[str, JSON] = {
        "chat": {"tool_choice": "none"},
        "responses": {"tool_choice": "none", "store": False},
    }
    expected = bare(shape, **fields) | added.get(shape.name, {})
    assert sent == expected | {shape.array: sent[shape.array]}
    # A choice is a part of what the cache of Messages was made with: there a forced call is not ridden.
    forced = {"type": "any"} if shape is MESSAGES else "required"
    other = send(shape, tools=_TOOLS, tool_choice=forced)
    assert other is None if shape is MESSAGES else other is not None and other["tool_choice"] == "none"
    assert "tool_choice" not in send_surely(shape, tools=[])


def test_a_cache_with_marks_needs_the_choice_of_tools_that_it_was_made_with() -> None:
    marked = text_block("Be good.", cache_control={"type": "ephemeral"})
    fields = {"messages": [say("user", "Look."), {"role": "user", "content": [marked]}], "tools": _TOOLS}
    assert "tool_choice" not in send_surely(CHAT, **fields)
    assert send_surely(CHAT, **fields, tool_choice="auto")["tool_choice"] == "auto"
    assert send(CHAT, **fields, tool_choice="required") is None


def test_bytes_of_the_prompt_stay() -> None:
    data = b'{ "messages" : [ {"role":"user","content":"\\u00e9 1.10"} ] , "x":1.10, "tools": [ {} ],"n":1}'
    expected = data.replace(b'1.10"} ] ,', b'1.10\\n\\nSum it up."} ] ,')
    assert MESSAGES.wire.ride(data, ASKED) == expected
    assert CHAT.wire.ride(data, ASKED) == expected.replace(b',"n":1}', b',"n":1,"tool_choice":"none"}')


@in_each_format
@pytest.mark.parametrize("content", ["", [], None])
def test_a_question_is_a_message_of_its_own_behind_what_holds_nothing(shape: Shape, content: Any) -> None:
    sent = send_surely(shape, **{shape.array: [say("user", "Look."), {"role": "user", "content": content}]})
    assert len(sent[shape.array]) == 3 and "Sum it up." in json.dumps(sent[shape.array][-1])


def test_the_limit_leaves_room_for_a_summary_and_for_thoughts_that_count() -> None:
    assert send_surely(CHAT, max_tokens=100)["max_tokens"] == 1_000
    assert send_surely(CHAT, max_completion_tokens=100)["max_completion_tokens"] == 9_192
    assert send_surely(RESPONSES, max_output_tokens=100)["max_output_tokens"] == 9_192
    thinking = {"type": "enabled", "budget_tokens": 1_500}
    assert send_surely(MESSAGES, max_tokens=2_000, thinking=thinking)["max_tokens"] == 2_500


def test_a_budget_that_leaves_no_room_for_a_summary_is_not_ridden() -> None:
    thinking = {"type": "enabled", "budget_tokens": 49_500}
    assert send(MESSAGES, thinking=thinking) is None
    # Unless it is the client's own: few thoughts take all of it.
    assert send_surely(MESSAGES, max_tokens=49_501, thinking=thinking)["max_tokens"] == 49_501


def test_the_upstream_does_not_keep_it() -> None:
    for kept in (True, False):
        assert send_surely(CHAT, store=kept)["store"] is send_surely(RESPONSES, store=kept)["store"] is False


_HOSTED = ("code_execution_20250825", "web_search_20250305", "web_fetch_20250910", "mcp_toolset")
_CLIENT_RUN = ("custom", "bash_20250124", "text_editor_20250728", "computer_20250124", "memory_20250818")
_NOT_CHAT: list[JSON] = [
    *({"n": 2}, {"response_format": {"type": "json_object"}}),
    {"response_format": {"type": "json_schema", "json_schema": {}}},
    *({"modalities": ["text", "audio"], "audio": {"voice": "x"}}, {"functions": [{"name": "look"}]}),
    *({"stop": ["\nObservation:"]}, {"prediction": {"type": "content", "content": "a"}}),
    *({"web_search_options": {"search_context_size": "low"}}, {"guided_json": {"type": "object"}}),
    *({"plugins": [{"id": "web"}]}, {"model": "toy:online"}, {"search_parameters": {"mode": "on"}}),
    *({"enable_search": True}, {"transforms": ["middle-out"]}, {"continue_final_message": True}),
    *({"add_generation_prompt": False}, {"store": True, "metadata": {"a": "b"}}),
    {"messages": [*_LOOK, {"role": "assistant", "content": "I"}]},
]
_NOT_MESSAGES: list[JSON] = [
    *({"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "tool", "name": "look"}}),
    *({"stop_sequences": ["END"]}, {"output_format": {"type": "json_schema"}}),
    {"output_config": {"format": {"type": "json_schema"}}},
    {"mcp_servers": [{"type": "url", "url": "https://x.example"}]},
    *({"container": "c"}, {"thread": {"type": "create"}}),
    *({"tools": [*_TOOLS, {"type": kind, "name": "x"}]} for kind in _HOSTED),
    {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    {"messages": [*_LOOK, {"role": "assistant", "content": "I"}]},
]
_NOT_RESPONSES: list[JSON] = [
    *({"input": "Look."}, {"background": True}, {"prompt": {"id": "pmpt_1"}}, {"truncation": "auto"}),
    *({"conversation": "conv_1"}, {"previous_response_id": "resp_1"}),
    {"context_management": [{"type": "compaction"}]},
    *({"text": {"format": {"type": "json_schema", "schema": {}}}}, {"input": [*_LOOK, _CALL]}),
    {"input": [*_LOOK, {"type": "reasoning", "summary": []}]},
    {"input": [*_LOOK, {"role": "assistant", "content": "I"}]},
    {"input": [*_LOOK, {"type": "compaction_trigger"}]},
]
_USUAL_CHAT: list[JSON] = [
    *({"n": 1}, {"enable_search": False}, {"add_generation_prompt": True}, {"metadata": {"a": "b"}}),
    *({"response_format": {"type": "text"}}, {"modalities": ["text"]}, {"stop": None}, {"stop": []}),
]
_USUAL_MESSAGES: list[JSON] = [
    {"tools": _TOOLS},
    {"tools": [{"type": kind, "name": "x"} for kind in _CLIENT_RUN]},
    {"tools": _TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
    {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
]
_USUAL_RESPONSES: list[JSON] = [
    *({"text": {"verbosity": "low"}}, {"text": {"format": {"type": "text"}}}, {"background": False}),
    {"truncation": "disabled"},
]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *(("chat", fields) for fields in _NOT_CHAT),
        *(("messages", fields) for fields in _NOT_MESSAGES),
        *(("responses", fields) for fields in _NOT_RESPONSES),
    ],
)
def test_what_would_act_end_or_be_kept_otherwise_is_not_ridden(name: str, fields: JSON) -> None:
    assert send(SHAPES[name], **fields) is None


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        *(("chat", fields) for fields in _USUAL_CHAT),
        *(("messages", fields) for fields in _USUAL_MESSAGES),
        *(("responses", fields) for fields in _USUAL_RESPONSES),
    ],
)
def test_fields_that_say_what_is_usual_are_no_hindrance(name: str, fields: JSON) -> None:
    sent = send_surely(SHAPES[name], **fields)
    assert {key: sent[key] for key in fields} == fields
