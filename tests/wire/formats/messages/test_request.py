import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.recognizer import Recognizer
from gateway.core.errors import Unreadable
from gateway.core.history.conversation import Conversation, is_boundary
from gateway.core.history.message import Call, Message
from gateway.outgoing.rewriter import Rewriter
from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.messages.request import parse_body, parse_message
from gateway.wire.request import Envelope, message_key
from tests.builders.chat import make_plan, make_turn, render_message
from tests.builders.messages import (
    IMAGE,
    JSON,
    MARK,
    conversations,
    read,
    render,
    result,
    text_block,
    thought,
    use,
)
from tests.shared_data import SHARED, requires_shared

_REMINDER = "<system-reminder>x</system-reminder>"
_SERVER_CALL = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
_SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]}


def user(*blocks: Any) -> JSON:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> JSON:
    return {"role": "assistant", "content": list(blocks)}


def facts(message: JSON) -> Message:
    raw = render_message(message)
    return parse_message(raw, message_key(raw, b"t"))


def envelope(**fields: Any) -> Envelope:
    return parse_body(json.dumps({"messages": [], **fields}).encode()).envelope


# Changes that real clients make between two requests of one conversation.
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "user", "content": "Look."}, user(text_block("Look."))),
        (user(text_block("Look.")), user(text_block("Look.", **MARK))),
        (user(text_block("Look.")), user(text_block("Lo"), text_block("ok."))),
        (user(text_block("Look.")), user(text_block(f"{_REMINDER}\n"), text_block("Look."))),
        (user(text_block("Look.")), user(text_block(f"Look.\n{_REMINDER}"))),
        (user(text_block("Look.")), {**user(text_block("Look.")), "id": "m", "type": "message"}),
        (user(text_block("Look.")), user(text_block("Look.", citations=None))),
        (user(result()), user(result(**MARK))),
        (user(result()), user(result(content=[text_block("done")]))),
        (user(result()), user(result(content=[text_block("done", **MARK)]))),
        (user(result()), user(result(is_error=False))),
        (user(result()), user(result(), text_block(_REMINDER))),
        (user(IMAGE), user({**IMAGE, **MARK})),
        (assistant(use(a=1, b="é")), assistant({**use(b="é", a=1), **MARK})),
        (assistant(use()), assistant({**use(), "caller": {"type": "direct"}})),
        (assistant(text_block("a")), assistant(thought(), text_block("a"))),
        (assistant(text_block("a")), assistant({"type": "redacted_thinking", "data": "x"}, text_block("a"))),
        (assistant(text_block("a")), {**assistant(text_block("a")), "stop_reason": "end_turn", "usage": {}}),
        (assistant(text_block("a"), use()), assistant(text_block("a"), text_block(""), use())),
    ],
)
def test_changes_that_clients_make_do_not_change_the_fingerprint(one: JSON, other: JSON) -> None:
    assert facts(one).fingerprint == facts(other).fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user(text_block("Look.")), user(text_block("look."))),
        (user(text_block("Look.")), assistant(text_block("Look."))),
        (user(text_block("Look.")), user(text_block("Look."), IMAGE)),
        (user(text_block("Look.")), {**user(text_block("Look.")), "unknown": 1}),
        (user(IMAGE), user({**IMAGE, "source": {"type": "url", "url": "u"}})),
        (user(result()), user(result("b"))),
        (user(result()), user(result(content="don"))),
        (user(result()), user(result(is_error=True))),
        (user(result()), user(result(content=[text_block("done"), IMAGE]))),
        (user(result()), user(result(), text_block("Go on."))),
        (user(result()), user(result(content=f"done{_REMINDER}"))),
        (user(result("a"), result("b", "")), user(result("b"), result("a", ""))),
        (user(result(content="ab")), user(result(content="a"), text_block("b"))),
        (assistant(use(a=1)), assistant(use(a=2))),
        (assistant(use(a=1)), assistant(use(a="1"))),
        (assistant(use()), assistant(use("b"))),
        (assistant(use()), assistant(use(tool="peek"))),
        (assistant(use("a"), use("b")), assistant(use("b"), use("a"))),
        (assistant(text_block("a")), assistant(text_block(f"{_REMINDER}a"))),
        (assistant(_SERVER_CALL), assistant({**_SERVER_CALL, "input": {"query": "r"}})),
        (assistant(_SERVER_CALL), assistant(_SERVER_CALL, _SERVER_RESULT)),
        (assistant({"type": "new", "x": 1}), assistant({"type": "new", "x": 2})),
    ],
)
def test_other_content_has_another_fingerprint(one: JSON, other: JSON) -> None:
    assert facts(one).fingerprint != facts(other).fingerprint


@pytest.mark.parametrize(
    ("message", "role", "calls", "results", "has_media"),
    [
        (user(text_block("a")), "user", (), (), False),
        (user(text_block(_REMINDER)), "user", (), (), False),
        (user(IMAGE), "user", (), (), True),
        (user(result("a"), result("b")), "tool", (), ("a", "b"), False),
        (user(result(), text_block(_REMINDER)), "tool", (), ("a",), False),
        (user(result(), text_block("Go on.")), "user", (), ("a",), False),
        (user(result(), IMAGE), "user", (), ("a",), True),
        (user(result(content=[IMAGE])), "tool", (), ("a",), True),
        (user({"type": "tool_result", "tool_use_id": "a"}), "tool", (), ("a",), False),
        (user({"type": "container_upload", "file_id": "f"}), "user", (), (), True),
        ({"role": "system", "content": "Stay calm."}, "system", (), (), False),
        ({"role": "wizard", "content": "x"}, "other", (), (), False),
        (
            assistant(use("a"), use("b", "skill")),
            "assistant",
            (Call("a", "look"), Call("b", "skill")),
            (),
            False,
        ),
        (assistant(thought(), use("a")), "assistant", (Call("a", "look"),), (), False),
        (assistant(_SERVER_CALL, _SERVER_RESULT), "assistant", (), (), True),
        (assistant(_SERVER_CALL), "assistant", (), (), False),
        (
            assistant({"type": "mcp_tool_use", "id": "m", "name": "x", "input": {}}),
            "assistant",
            (),
            (),
            False,
        ),
        (user(), "user", (), (), False),
    ],
)
def test_the_facts_of_a_message(
    message: JSON, role: str, calls: tuple[Call, ...], results: tuple[str, ...], has_media: bool
) -> None:
    found = facts(message)
    assert (found.role, found.calls, found.results, found.has_media) == (role, calls, results, has_media)
    assert found.size_bytes == len(render_message(message))


@given(conversations(min_turns=1), st.integers(0, 3))
def test_the_spelling_of_a_message_does_not_change_what_it_says(messages: list[JSON], style: int) -> None:
    for message in messages:
        usual, other = (
            parse_message(render_message(message), b"k"),
            parse_message(render_message(message, style), b"k"),
        )
        assert usual._replace(size_bytes=0) == other._replace(size_bytes=0)


def test_a_hosted_tool_that_waited_for_the_client_is_not_separated_from_its_result() -> None:
    """A program that the upstream runs calls one of the client's tools, and continues in the next reply."""
    program = {"type": "server_tool_use", "id": "s", "name": "code_execution", "input": {"code": "look()"}}
    ended = {"type": "code_execution_tool_result", "tool_use_id": "s", "content": {"stdout": "1"}}
    talk = [
        {"role": "user", "content": "Look."},
        assistant(program, use("a")),
        user(result("a")),
        assistant(ended, text_block("Done.")),
        {"role": "user", "content": "Thanks."},
    ]
    conversation = read(render(talk)).conversation
    assert [is_boundary(conversation, at) for at in range(1, 5)] == [True, False, False, True]
    assert facts(assistant(ended)).role == "assistant"
    assert facts(assistant(program, ended)).results == ()


@pytest.mark.parametrize(
    "raw",
    [b"1", b"null", b"{}", b'{"role":1}', b'{"role":"user","content":NaN}', b'{"role":"user"', b"[" * 5_000],
)
def test_an_invalid_message_is_unreadable(raw: bytes) -> None:
    with pytest.raises(Unreadable):
        parse_message(raw, b"k")


@pytest.mark.parametrize(
    "content",
    [
        None,
        1,
        "",
        [],
        [1],
        ["a"],
        [{}],
        [{"type": 1}],
        [{"type": []}],
        [{"type": {}}],
        [{"type": "text"}],
        [{"type": "tool_use"}],
        [[]],
    ],
)
def test_content_of_odd_types_is_read(content: object) -> None:
    for role in ("user", "assistant"):
        message = {"role": role, "content": content}
        assert facts(message).role == role
        MESSAGES.parse_entry(render_message(message))


def test_the_envelope_holds_the_fields_of_the_request() -> None:
    found = envelope(
        model="m",
        max_tokens=3_000,
        stream=True,
        thinking={"type": "enabled", "budget_tokens": 2_000},
        tools=[{"name": "look"}],
        system="You look.",
    )
    assert (found.model, found.is_streaming, found.requested_tokens) == ("m", True, 3_000)
    assert (found.requested_key, found.wants_usage, found.minimum_reply_tokens) == ("max_tokens", True, 3_024)
    assert found.tools and found.system and found.tools_slice and found.system_slice


@pytest.mark.parametrize(
    "thinking", [None, 1, {}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": None}]
)
def test_without_a_thinking_budget_there_is_no_minimum_reply(thinking: object) -> None:
    assert envelope(max_tokens=10, thinking=thinking).minimum_reply_tokens == 0


@pytest.mark.parametrize(
    ("management", "expected"),
    [
        (None, False),
        ({"edits": []}, False),
        ({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, False),
        ({"edits": [{"type": "clear_tool_uses_20250919"}]}, True),
        ({"edits": [1, {}, {"type": []}, {"type": "compact_20260112"}]}, True),
        ({"edits": 1}, False),
        ([], False),
    ],
)
def test_a_request_may_ask_the_upstream_to_drop_old_parts(management: object, expected: bool) -> None:
    assert envelope(context_management=management).is_trimmed is expected


def test_the_slices_of_the_envelope_hold_its_values() -> None:
    for frame in range(3):
        body = read(render([{"role": "user", "content": "a"}], frame)).body
        assert body.field(body.envelope.requested_slice) == b"3000"
        assert json.loads(body.field(body.envelope.tools_slice))[0]["name"] == "look"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("You look.", [text_block("You look.", **MARK)], True),
        ([text_block("a"), text_block("b")], [text_block("a", **MARK), text_block("b")], True),
        ([text_block("x-anthropic-billing-header: cch=1;"), text_block("a")], "a", True),
        (None, "", True),
        (None, [], True),
        ("a", "b", False),
        ("a", None, False),
        ([text_block("a")], [text_block("a"), {"type": "new"}], False),
    ],
)
def test_only_the_texts_of_the_system_prompt_are_hashed(one: object, other: object, same: bool) -> None:
    assert (envelope(system=one).system == envelope(system=other).system) == same


def test_short_blocks_before_a_long_one_are_identity_blocks() -> None:
    prompt = "You look. " * 50
    assert envelope(system=[text_block("I am it."), text_block(prompt)]).identity_blocks == ("I am it.",)
    assert envelope(system=[text_block("I am it.")]).identity_blocks == ()
    assert envelope(system=prompt).identity_blocks == envelope(system=None).identity_blocks == ()


def _load_captures() -> list[tuple[str, JSON]]:
    """Session and body of each request, in order."""
    folder: Path = SHARED / "data" / "captures" / "claude-code"
    found = []
    for path in sorted(folder.glob("*_messages.json")):
        capture = json.loads(path.read_text("utf-8"))
        headers = {name.lower(): value for name, value in capture["headers"]}
        found.append((headers.get("x-claude-code-agent-id", "main"), capture["body"]))
    return found


def _render_capture(body: JSON) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


@requires_shared
def test_each_recorded_request_continues_the_one_before() -> None:
    recognizer = Recognizer(1 << 26, 1 << 22, 64)
    before: dict[str, Conversation] = {}
    for session, body in _load_captures():
        received = recognizer.recognize("t", MESSAGES, _render_capture(body))
        conversation, last = received.conversation, before.get(session)
        assert received.body.envelope.minimum_reply_tokens == 31_999 + 1_024
        if last is not None:
            assert conversation.chain[len(last.messages)] == last.key
        before[session] = conversation
    assert len(before) == 2


@requires_shared
def test_recorded_requests_are_forwarded_unchanged() -> None:
    for _, body in _load_captures():
        received = read(_render_capture(body))
        assert Rewriter(1 << 20).rewrite(make_turn(received), make_plan()) is received.body.data
