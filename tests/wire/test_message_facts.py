"""What is read of a message: its role, calls and results, its texts and their sizes."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Unreadable
from gateway.core.history.conversation import is_boundary
from gateway.core.history.message import Call, Message
from gateway.core.history.transcript import TranscriptEntry as Entry
from gateway.core.history.transcript import list_entries, render_transcript
from gateway.wire.body import UNBOUNDED
from gateway.wire.canonical import iter_words
from gateway.wire.registry import FORMATS
from tests.builders.messages import (
    IMAGE,
    MARK,
    REMINDER,
    SERVER_CALL,
    SERVER_RESULT,
    assistant,
    result,
    text_block,
    thought,
    use,
    user,
)
from tests.builders.messages import read as read_messages
from tests.builders.messages import render as render_messages
from tests.builders.responses import read as read_responses
from tests.builders.responses import render as render_responses
from tests.decisions.builders import JSON, render_message
from tests.examples import examples
from tests.wire.shapes import Shape, in_each_format

# A message, its role, its calls as `id:tool`, the ids of its results, and whether it has media.
Fact = tuple[JSON, str, str, tuple[str, ...], bool]
Facts = list[Fact]
few = examples(20, exhaustive=40)
_USER: JSON = {"role": "user", "content": "Look."}
_CALLS: list[JSON] = [
    {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"n": 1, "p": "é"}'}},
    {"id": "b", "type": "function", "function": {"name": "skill", "arguments": "{}"}},
]
_ASSISTANT: JSON = {"role": "assistant", "content": "I look.", "tool_calls": _CALLS}
_RESULT: JSON = {"role": "tool", "tool_call_id": "a", "content": "done"}
_PICTURE: JSON = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
_CALL: JSON = {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"b": 1, "a": 2}'}
_OUTPUT: JSON = {"type": "function_call_output", "call_id": "a", "output": "found"}
_THOUGHT: JSON = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
_SCREEN = {"type": "computer_call_output", "call_id": "a", "output": {"type": "computer_screenshot"}}
_HOSTED = {"type": "mcp_tool_use", "id": "m", "name": "x", "input": {}}
_FACTS_IN_CHAT: Facts = [
    *((_USER, "user", "", (), False), ({**_USER, "content": [_PICTURE]}, "user", "", (), True)),
    ({"role": "developer", "content": "x"}, "system", "", (), False),
    *((_ASSISTANT, "assistant", "a:look b:skill", (), False), (_RESULT, "tool", "", ("a",), False)),
    ({"role": "tool", "content": "x"}, "tool", "", ("",), False),
    ({"role": "function", "name": "f", "content": "x"}, "tool", "", ("",), False),
    ({"role": "wizard", "content": 7}, "other", "", (), True),
    ({"role": "assistant", "tool_calls": [{"id": 7}]}, "assistant", "7:", (), False),
]
_FACTS_IN_MESSAGES: Facts = [
    (user(text_block(REMINDER)), "user", "", (), False),
    (user(IMAGE), "user", "", (), True),
    (user(result("a"), result("b")), "tool", "", ("a", "b"), False),
    (user(result(), text_block(REMINDER)), "tool", "", ("a",), False),
    (user(result(), text_block("Go on.")), "user", "", ("a",), False),
    (user(result(), IMAGE), "user", "", ("a",), True),
    (user(result(content=[IMAGE])), "tool", "", ("a",), True),
    (user({"type": "container_upload", "file_id": "f"}), "user", "", (), True),
    ({"role": "system", "content": "Stay calm."}, "system", "", (), False),
    (assistant(use("a"), use("b", "skill")), "assistant", "a:look b:skill", (), False),
    (assistant(thought(), use("a")), "assistant", "a:look", (), False),
    (assistant(SERVER_CALL, SERVER_RESULT), "assistant", "", (), True),
    (assistant(SERVER_CALL), "assistant", "", (), False),
    (assistant(_HOSTED), "assistant", "", (), False),
]
_FACTS_IN_RESPONSES: Facts = [
    (_CALL, "assistant", "a:look", (), False),
    (_OUTPUT, "tool", "", ("a",), False),
    (_SCREEN, "tool", "", ("a",), True),
]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        *(("chat", facts) for facts in _FACTS_IN_CHAT),
        *(("messages", facts) for facts in _FACTS_IN_MESSAGES),
        *(("responses", facts) for facts in _FACTS_IN_RESPONSES),
    ],
)
def test_the_facts_of_a_message(name: str, facts: Fact) -> None:
    raw = render_message(facts[0])
    found = FORMATS[name].parse_message(raw, b"k")
    calls = " ".join(f"{call.id}:{call.tool}" for call in found.calls)
    assert (found.role, calls, found.results, found.has_media) == facts[1:]
    assert (found.size_bytes, found.key) == (len(raw), b"k")


def read_item(item: JSON) -> Message:
    return FORMATS["responses"].parse_message(json.dumps(item).encode(), b"k")


_ROLES: list[tuple[JSON, str]] = [
    ({"role": "developer", "content": "x"}, "system"),
    ({"type": "message", "role": "system", "content": "x"}, "system"),
    ({"role": "user", "content": "x"}, "user"),
    ({"type": "message", "role": "assistant", "content": []}, "assistant"),
    *(({"type": "message", "role": "critic"}, "other"), ({"type": "message", "role": []}, "other")),
    *(({"type": "message", "role": {}}, "other"), ({"type": "reasoning", "summary": []}, "assistant")),
    ({"type": "function_call", "call_id": "a"}, "assistant"),
    *(({"type": "web_search_call"}, "assistant"), ({"type": "mcp_list_tools"}, "assistant")),
    ({"type": "mcp_approval_request", "id": "a"}, "assistant"),
    ({"type": "mcp_approval_response", "approval_request_id": "a"}, "tool"),
    ({"type": "custom_tool_call_output", "call_id": "a"}, "tool"),
    ({"type": "tool_search_output", "call_id": "a"}, "tool"),
    *(({"type": "shell_call_output"}, "assistant"), ({"type": "item_reference", "id": "a"}, "assistant")),
    ({"type": "compaction", "encrypted_content": "x"}, "other"),
    *(({"type": "compaction_trigger"}, "other"), ({"type": "of_tomorrow"}, "other")),
]
_ITEM_CALLS: list[tuple[JSON, tuple[str, str] | None]] = [
    ({"type": "function_call", "call_id": "a", "name": "look"}, ("a", "look")),
    ({"type": "custom_tool_call", "call_id": "a", "name": "patch"}, ("a", "patch")),
    ({"type": "local_shell_call", "call_id": "a"}, ("a", "local_shell")),
    ({"type": "computer_call", "call_id": "a"}, ("a", "computer")),
    ({"type": "of_tomorrow_call", "call_id": "a"}, ("a", "of_tomorrow")),
    ({"type": "mcp_approval_request", "id": "a", "name": "look"}, ("a", "look")),
    # The upstream answers these calls.
    ({"type": "web_search_call", "id": "ws_1"}, None),
    ({"type": "tool_search_call", "call_id": None}, None),
    ({"type": "function_call_output", "call_id": "a"}, None),
    ({"role": "assistant", "content": "x"}, None),
]


@pytest.mark.parametrize(("item", "role"), _ROLES)
def test_the_role_of_an_item(item: JSON, role: str) -> None:
    assert read_item(item).role == role


@pytest.mark.parametrize(("item", "call"), _ITEM_CALLS)
def test_the_calls_that_the_client_must_answer(item: JSON, call: tuple[str, str] | None) -> None:
    assert read_item(item).calls == ((Call(*call),) if call else ())


_THOUGHT_RAW = b'{"summary":[],"type":"reasoning"}'
_JOINED = [
    (_THOUGHT_RAW, b'{"type":"function_call","call_id":"a"}', True),
    (_THOUGHT_RAW, b'{"role":"assistant","content":"x"}', True),
    (_THOUGHT_RAW, b'{"type":"of_tomorrow"}', True),
    (_THOUGHT_RAW, _THOUGHT_RAW, True),
    (_THOUGHT_RAW + b", " + _THOUGHT_RAW, b'{"type":"web_search_call"}', True),
    (_THOUGHT_RAW, b'{"role":"user","content":"x"}', False),
    (_THOUGHT_RAW, b'{"type":"function_call_output","call_id":"a"}', False),
    (_THOUGHT_RAW, b'{"type":"compaction"}', False),
    (b'{"role":"user","content":"\\"reasoning\\""}', _THOUGHT_RAW, False),
    (b'{"role":"user","content":"reasoning"}', _THOUGHT_RAW, False),
    (_THOUGHT_RAW + b',{"role":"assistant","content":"x"}', b'{"type":"function_call"}', False),
]


@pytest.mark.parametrize(("before", "behind", "expected"), _JOINED)
def test_reasoning_and_the_next_item_of_the_model_are_one_message(
    before: bytes, behind: bytes, expected: bool
) -> None:
    alone, both = (
        FORMATS["responses"].parse_body(b'{"input":[%s]}' % items, UNBOUNDED).places
        for items in (before, before + b"," + behind)
    )
    assert (len(both) == len(alone)) is expected


def test_reasoning_does_not_change_the_identity_of_what_it_led_to() -> None:
    received = read_responses(render_responses([_USER, _THOUGHT, _CALL, _OUTPUT]))
    assert json.loads(b"[" + received.raw(1) + b"]") == [_THOUGHT, _CALL]
    bare = read_responses(render_responses([_USER, _CALL, _OUTPUT]))
    assert received.conversation.chain == bare.conversation.chain


def test_a_string_is_the_same_as_one_user_message() -> None:
    text = read_responses(b'{"model":"m","input": "Look."}')
    assert text.body.raw(0) == b'"Look."'
    assert text.conversation.chain == read_responses(render_responses([_USER])).conversation.chain


def test_nothing_up_to_a_compaction_of_the_upstream_is_ever_summarized() -> None:
    opaque = {"type": "compaction", "encrypted_content": "x"}
    items = [_USER, _CALL, _OUTPUT, opaque, _USER, _CALL, _OUTPUT]
    assert read_responses(render_responses(items)).conversation.opening_end == 5


def test_a_hosted_tool_that_waited_for_the_client_is_not_separated_from_its_result() -> None:
    """A program that the upstream runs calls one of the client's tools, and continues in the next reply."""
    program = {"type": "server_tool_use", "id": "s", "name": "code_execution", "input": {"code": "look()"}}
    ended = {"type": "code_execution_tool_result", "tool_use_id": "s", "content": {"stdout": "1"}}
    talk = [
        *({"role": "user", "content": "Look."}, assistant(program, use("a")), user(result("a"))),
        *(assistant(ended, text_block("Done.")), {"role": "user", "content": "Thanks."}),
    ]
    conversation = read_messages(render_messages(talk)).conversation
    assert [is_boundary(conversation, at) for at in range(1, 5)] == [True, False, False, True]


_INVALID = [
    *(b"1", b"null", b"[]", b"{}", b'{"role":1,"type":7}', b'{"role":"user","content":NaN}', b"[" * 5_000)
]


@in_each_format
@pytest.mark.parametrize("raw", [*_INVALID, b'{"role":"user","content":"\xff"}', b'{"role":"user"'])
def test_an_invalid_message_is_unreadable(shape: Shape, raw: bytes) -> None:
    with pytest.raises(Unreadable):
        shape.wire.parse_message(raw, b"k")


_ODD: list[Any] = [
    *(None, 1, "", [], [1], ["a"], [{}], [{"type": 1}], [{"type": []}], [{"type": {}}]),
    *([{"type": "text"}], [{"type": "tool_use"}], [[]]),
]


@in_each_format
@pytest.mark.parametrize("content", _ODD)
def test_content_of_odd_types_is_read(shape: Shape, content: object) -> None:
    for role in ("user", "assistant"):
        raw = render_message({"role": role, "content": content})
        assert shape.wire.parse_message(raw, b"k").role == role
        shape.wire.parse_entry(raw)


_DONE = Entry("tool", "done", (), 0, is_result=True)
_BLOB = "QUJD" * 256


def says(*parts: object) -> JSON:
    return {"role": "user", "content": list(parts)}


def calls(*pieces: object) -> JSON:
    return {"role": "assistant", "tool_calls": list(pieces)}


_LARGE = "QUJD" * 9_000
_ENTRIES_IN_CHAT: list[tuple[JSON, Entry]] = [
    (_USER, Entry("user", "Look.", (), 0)),
    (says(text_block("a"), "b", {"type": "image_url"}), Entry("user", "a\nb", (), 1, media_tokens=1_000)),
    (
        says(
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_LARGE}"}},
            {"type": "input_audio", "input_audio": {"data": _LARGE, "format": "wav"}},
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{_LARGE}"}},
        ),
        Entry("user", "", (), 3, media_tokens=1_000 + 1_200 + 6_000),
    ),
    (
        says({"type": "thinking", "thinking": "hm, a b", "n": [{"m": "c"}]}),
        Entry("user", "", (), 1, "thinking\nhm, a b\nc"),
    ),
    (says({"type": "new", "a": "data:x/y;base64,QQ==", "b": _BLOB}), Entry("user", "", (), 1, "new")),
    (says({"type": ["odd"], "a": "漢" * 999}), Entry("user", "", (), 1, "odd\n" + "漢" * 999)),
    ({"role": "assistant"}, Entry("assistant", "", (), 0)),
    (
        {"role": "assistant", "content": "a", "reasoning_content": "hm", "refusal": "no"},
        Entry("assistant", "a", (), 0, "hm\nno"),
    ),
    (calls(*_CALLS[1:]), Entry("assistant", "", (("skill", "{}"),), 0)),
    (
        calls({"type": "custom", "custom": {"name": "f", "input": "x"}}),
        Entry("assistant", "", (("f", "x"),), 0),
    ),
    (calls({"type": None, "function": {"name": "f"}}), Entry("assistant", "", (("f", ""),), 0)),
    (calls({"type": "new"}), Entry("assistant", "", (("", ""),), 0)),
    (
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        Entry("assistant", "", (("f", "{}"),), 0),
    ),
    (_RESULT, _DONE),
    ({"role": "function", "content": "a"}, Entry("function", "a", (), 0, is_result=True)),
]
_ENTRIES_IN_MESSAGES: list[tuple[JSON, Entry]] = [
    (user(text_block("a", **MARK), IMAGE, text_block("b")), Entry("user", "a\nb", (), 1, media_tokens=1_000)),
    (assistant({"type": "compaction", "content": "So."}), Entry("assistant", "So.", (), 0)),
    ({"role": "user"}, Entry("user", "", (), 0)),
    (user(result(content=[text_block("done")])), _DONE),
    (user({"type": "tool_result"}), Entry("tool", "", (), 0, is_result=True)),
    (
        user(result("a"), result("b", [IMAGE]), text_block("Go on.")),
        replace(
            _DONE,
            more=(
                Entry("tool", "", (), 1, is_result=True, media_tokens=1_000),
                Entry("user", "Go on.", (), 0),
            ),
        ),
    ),
    (
        assistant(thought("hm"), text_block("a"), use(n=1), text_block("b")),
        Entry("assistant", "a\nb", (("look", '{"n":1}'),), 0, "hm"),
    ),
    (
        assistant({"type": "thinking", "thinking": "", "signature": "QUJD" * 10}),
        Entry("assistant", "", (), 0, media_tokens=8),
    ),
    (
        assistant({"type": "redacted_thinking", "data": "QUJD" * 10}),
        Entry("assistant", "", (), 0, media_tokens=8),
    ),
    (assistant(SERVER_CALL), Entry("assistant", "", (("web_search", '{"query":"q"}'),), 0)),
    (
        assistant({"type": "web_search_tool_result", "content": [{"url": "u", "encrypted_content": _BLOB}]}),
        Entry("assistant", "", (), 1, "web_search_tool_result\nu", media_tokens=204),
    ),
    (
        user({"type": "document", "source": {"type": "base64", "data": _BLOB}}),
        Entry("user", "", (), 1, media_tokens=6_000),
    ),
    (
        user({"type": "document", "source": {"type": "text", "data": "word"}}),
        Entry("user", "", (), 1, "document\ntext\nword"),
    ),
]


@pytest.mark.parametrize(
    ("name", "message", "entry"),
    [*(("chat", *row) for row in _ENTRIES_IN_CHAT), *(("messages", *row) for row in _ENTRIES_IN_MESSAGES)],
)
def test_the_entry_of_a_message_holds_its_texts(name: str, message: JSON, entry: Entry) -> None:
    assert FORMATS[name].parse_entry(render_message(message)) == entry


@few
@in_each_format
@given(data=st.data())
def test_every_call_and_every_result_of_a_message_is_in_its_entries(
    shape: Shape, data: st.DataObject
) -> None:
    received = shape.read(data.draw(shape.bodies(min_turns=1)))
    for at, message in enumerate(received.conversation.messages):
        entries = list_entries([received.format.parse_entry(received.raw(at))])
        results = sum(entry.is_result for entry in entries)
        assert results == len(message.results) or shape.name == "responses"
        assert [name for entry in entries for name, _ in entry.calls][: len(message.calls)] == [
            call.tool for call in message.calls
        ]


def speak(*items: JSON) -> str:
    return render_transcript(
        [FORMATS["responses"].parse_entry(b",".join(json.dumps(item).encode() for item in items))]
    )


_LINES: list[tuple[JSON, str]] = [
    ({"role": "user", "content": "Look."}, "[user]: Look."),
    (
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
        "[assistant]: Done.",
    ),
    (
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"a":1}'},
        '[assistant calls look]: {"a":1}',
    ),
    (
        {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "*** Begin"},
        "[assistant calls patch]: *** Begin",
    ),
    (
        {"type": "local_shell_call", "call_id": "a", "action": {"command": ["ls"]}},
        '[assistant calls local_shell]: {"action":{"command":["ls"]}}',
    ),
    ({"type": "function_call_output", "call_id": "a", "output": "found"}, "[tool result]: found"),
    (
        {"type": "shell_call_output", "call_id": "a", "output": [{"stdout": "one", "stderr": "two"}]},
        "[tool result]: one\ntwo",
    ),
]


@pytest.mark.parametrize(("item", "line"), _LINES)
def test_the_entry_of_an_item_holds_the_text_that_a_person_would_read(item: JSON, line: str) -> None:
    assert line in speak(item)


def test_reasoning_is_counted_and_never_quoted() -> None:
    thought = {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "x" * 600,
    }
    message = {"role": "assistant", "content": "Done."}
    entry = FORMATS["responses"].parse_entry(
        json.dumps(thought).encode() + b"," + json.dumps(message).encode()
    )
    assert (entry.text, entry.hidden, entry.media_tokens) == ("Done.", "Hm.", 100)
    assert "Hm." not in speak(thought, message)


def test_images_have_a_fixed_size_in_every_place() -> None:
    url = "data:image/png;base64," + "A" * 9_000
    message = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    screen = {
        "type": "computer_call_output",
        "call_id": "a",
        "output": {"type": "computer_screenshot", "image_url": url},
    }
    drawn = {"type": "image_generation_call", "id": "ig_1", "result": "A" * 9_000}
    entries = [
        FORMATS["responses"].parse_entry(json.dumps(item).encode()) for item in (message, screen, drawn)
    ]
    assert [entry.media for entry in entries] == [1, 1, 1]
    assert all(0 < entry.media_tokens < 2_000 and len(entry.hidden) < 100 for entry in entries)


_BASE64 = "QUJD" * 256


@pytest.mark.parametrize("text", ["data:image/png;base64,QQ==", _BASE64, _BASE64 + "\n" + _BASE64])
def test_base64_is_not_a_word(text: str) -> None:
    assert list(iter_words([text])) == []


def split(name: str, message: object) -> bytes:
    return FORMATS[name].parse_message(json.dumps(message).encode(), b"").split


_PARTS = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]


@pytest.mark.parametrize("content", ["a", "", None, 7, _PARTS])
def test_results_are_told_from_the_rest_of_a_message(content: Any) -> None:
    def split_all(content: object) -> list[bytes]:
        blocks = [result("a", content, is_error=True), SERVER_RESULT, text_block("Go on.")]
        chat = split("chat", {"role": "tool", "content": content, "tool_call_id": "a", "x-unknown": 1})
        return [chat, split("responses", {**_OUTPUT, "output": content}), split("messages", user(*blocks))]

    found, others = split_all(content), split_all("x")
    assert [each[:32] for each in found] == [each[:32] for each in others]
    assert {each[32:] for each in found} == {found[0][32:]} != {each[32:] for each in others}
    assert len(found[0]) == 64


@pytest.mark.parametrize("item", [_SCREEN, {"type": "mcp_call", "id": "a", "output": "text"}])
def test_an_output_that_no_client_clears_is_a_part_of_its_item(item: JSON) -> None:
    assert split("responses", item) == b""
