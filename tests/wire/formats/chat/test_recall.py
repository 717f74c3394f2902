import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.recall import RecallRound, ReplyMark, make_reply_mark
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.chat.recall import (
    RECALL,
    continue_reply,
    make_tool,
    may_offer,
    render_exchange,
    render_results,
    splice,
)
from gateway.wire.formats.chat.request import parse_body
from gateway.wire.recall import (
    RECALL_TOOL,
    AnsweredRecall,
    Insertion,
    RecallCall,
    RecallRequest,
    ReplyStitcher,
)
from tests.toy.validity import find_violation
from tests.wire.formats.chat.turns import (
    DrawnCall,
    DrawnResponse,
    ServerStyle,
    read_stream,
    render_stream,
    turns,
)

_TOOL = {"type": "function", "function": {"name": "read"}}
_USER = {"role": "user", "content": "Go."}


def make_body(messages: list[Any], *, indent: int | None = None, **fields: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": messages, "tools": [_TOOL], **fields}, indent=indent
    ).encode()


def insert(data: bytes, insertions: list[Insertion]) -> bytes:
    """In their order, as the gateway does."""
    by_place: dict[int, bytes] = {}
    for at, new in insertions:
        by_place[at] = by_place.get(at, b"") + new
    return apply_edits(data, [Edit(at, at, new) for at, new in by_place.items()])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"n": 1}, True),
        ({"tool_choice": "none"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "read"}}}, True),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}, {"type": "web_search"}]}, True),
        ({"tools": [{**_TOOL, "function": {"name": "\ud83d"}}]}, True),
        ({"n": 2}, False),
        ({"store": True}, False),
        ({"functions": []}, False),
        ({"function_call": "auto"}, False),
        ({"audio": {"voice": "a"}}, False),
        ({"tools": []}, False),
        ({"tools": None}, False),
        ({"tools": {}}, False),
        ({"tools": [7]}, False),
        ({"tools": [{"function": {"name": RECALL_TOOL}}]}, False),
        ({"tools": [{"function": {"name": RECALL_TOOL + "_2"}}]}, False),
        ({"tools": [{"type": "custom", "custom": {"name": RECALL_TOOL}}]}, False),
        ({"tools": [_TOOL, {"name": RECALL_TOOL}]}, False),
    ],
)
def test_where_the_tool_can_be_offered(fields: dict[str, Any], expected: bool) -> None:
    assert may_offer(parse_body(make_body([_USER], **fields))) is expected


def test_without_tools_there_is_nothing_to_add_to() -> None:
    body = parse_body(json.dumps({"messages": [_USER]}).encode())
    assert not may_offer(body)
    with pytest.raises(ValueError, match="no tools"):
        make_tool(body)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("is_behind", [False, True])
def test_the_tool_stands_behind_the_clients(indent: int | None, is_behind: bool) -> None:
    fields = {"tools": [_TOOL], "messages": [_USER]}
    data = json.dumps(dict(sorted(fields.items(), reverse=not is_behind)), indent=indent).encode()
    sent = json.loads(insert(data, [make_tool(parse_body(data))]))
    assert sent["messages"] == [_USER]
    assert sent["tools"][0] == _TOOL
    own = sent["tools"][1]
    assert own["function"].pop("parameters")["required"] == ["query"]
    assert own["function"].pop("description").startswith("Search the original messages")
    assert own == {"type": "function", "function": {"name": RECALL_TOOL}}


def test_results_answer_the_calls() -> None:
    calls = (RecallCall("a", "x"), RecallCall("b", None))
    request = RecallRequest(calls=calls, call="", reply="", shown=0, said=0, is_parallel=False)
    assert json.loads(f"[{render_results(request, ['one', 'two'])}]") == [
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "content": "two"},
    ]


def test_an_exchange_is_two_messages() -> None:
    assert json.loads(b"[" + render_exchange('a"', "b") + b"]") == [
        {"role": "user", "content": 'a"'},
        {"role": "assistant", "content": "b"},
    ]


def play(stitcher: ReplyStitcher, responses: list[DrawnResponse]) -> tuple[bytes, list[AnsweredRecall]]:
    """What the client sees, and what each response asked for."""
    shown, answered = [], []
    for number, response in enumerate(responses, 1):
        shown.append(stitcher.feed(render_stream(response, ServerStyle(), number)))
        request = stitcher.end()
        if request is not None:
            results = [f"found {call.query} {number}" for call in request.calls]
            answered.append(AnsweredRecall(request, render_results(request, results)))
    return b"".join([*shown, stitcher.finish()]), answered


def make_rounds(answered: list[AnsweredRecall]) -> list[RecallRound]:
    return [
        RecallRound(
            call=request.call,
            results=results,
            shown=request.shown,
            said=request.said,
            is_parallel=request.is_parallel,
        )
        for request, results in answered
    ]


def send_back(shown: bytes) -> list[dict[str, Any]]:
    """The messages with which a client continues after a reply."""
    reply = read_stream(shown)
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.drawn_calls
    ]
    if not calls:
        return [message, _USER]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in calls]
    return [{**message, "tool_calls": calls}, *results]


@given(turns(), st.sampled_from([None, 1]), st.booleans())
def test_what_was_not_shown_is_sent_at_the_same_place_as_when_the_model_went_on(
    responses: list[DrawnResponse], indent: int | None, has_history: bool
) -> None:
    before = [_USER, {"role": "assistant", "content": "Yes."}, _USER] if has_history else [_USER]
    stitcher = RECALL.make_stitcher()
    shown, answered = play(stitcher, responses)
    first = parse_body(make_body(before, indent=indent))
    solo = [each for each in answered if not each.request.is_parallel]
    prefixes = [insert(first.data, continue_reply(first, solo[:count])) for count in range(len(solo) + 1)]
    second = parse_body(make_body([*before, *send_back(shown)], indent=indent))
    insertions = splice(second, len(before), len(before) + 1, make_rounds(answered), stitcher.reply)
    assert insertions is not None
    sent = insert(second.data, insertions)
    for earlier, later in zip(prefixes, [*prefixes[1:], sent], strict=True):
        messages = json.loads(earlier)["messages"]
        assert messages == json.loads(later)["messages"][: len(messages)]
        if has_history:
            end = parse_body(earlier)
            assert later.startswith(earlier[: end.places[len(end.places) - 1].end])
    assert find_violation(json.loads(sent)) is None
    whole = parse_body(sent)
    kept = [whole.raw(index) for index in range(len(whole.places))]
    reply = len(before)
    for index in range(len(second.places)):
        if index != reply:
            assert second.raw(index) in kept
    assert [_without_own(message) for message in json.loads(sent)["messages"] if not _is_own(message)] == (
        json.loads(second.data)["messages"]
    )
    ids = [call["id"] for message in json.loads(sent)["messages"] for call in message.get("tool_calls", ())]
    assert ids == [call.id for response in responses for call in response.calls]


def _is_own(message: Any) -> bool:
    """It answers the gateway's tool, or calls nothing else."""
    calls = message.get("tool_calls", ())
    is_call = bool(calls) and all(call["function"]["name"] == RECALL_TOOL for call in calls)
    return is_call or str(message["content"]).startswith("found ")


def _without_own(message: Any) -> Any:
    if "tool_calls" not in message:
        return message
    calls = [call for call in message["tool_calls"] if call["function"]["name"] != RECALL_TOOL]
    return {**message, "tool_calls": calls}


_RECALLED = DrawnResponse(("Let me see. ",), (), (DrawnCall("r", RECALL_TOOL, '{"query":"x"}'),))
_BOTH = DrawnResponse(
    (),
    (),
    (
        DrawnCall("r", RECALL_TOOL, '{"query":"x"}'),
        DrawnCall("a", "read", '{"path":"p"}'),
        DrawnCall("s", RECALL_TOOL, '{"query":"y"}'),
    ),
)


def splice_as(responses: list[DrawnResponse], messages: list[Any], count: int = 1) -> list[Any] | None:
    """The messages that are sent if the client continues with these."""
    stitcher = RECALL.make_stitcher()
    _, answered = play(stitcher, responses)
    body = parse_body(make_body([_USER, *messages]))
    insertions = splice(body, 1, 1 + count, make_rounds(answered), stitcher.reply)
    if insertions is None:
        return None
    sent: list[Any] = json.loads(insert(body.data, insertions))["messages"]
    return sent


@pytest.mark.parametrize(
    "content",
    [
        "Let me see. Found.",
        "Let me see.\n\nFound. ",
        [{"type": "text", "text": "Let me see."}, {"type": "text", "text": "Found."}],
    ],
)
def test_clients_may_write_a_text_in_another_way(content: Any) -> None:
    sent = splice_as([_RECALLED, DrawnResponse(("Found.",))], [{"role": "assistant", "content": content}])
    assert sent is not None
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant"]
    assert sent[1]["content"] == "Let me see. "
    assert sent[2]["tool_call_id"] == "r"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "Let me see. Other."}],
        [{"role": "user", "content": "Let me see. Found."}],
        [{"role": "assistant", "content": "Let me see. Found.", "tool_calls": [{"id": "a"}]}],
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": None, "tool_calls": 7}],
        [7],
    ],
)
def test_nothing_is_inserted_into_another_reply(messages: list[Any]) -> None:
    assert splice_as([_RECALLED, DrawnResponse(("Found.",))], messages) is None


def test_a_reply_of_two_messages_is_known() -> None:
    messages = [{"role": "assistant", "content": text} for text in ("Let me see.", "Found.")]
    sent = splice_as([_RECALLED, DrawnResponse(("Found.",))], messages, 2)
    assert sent is not None
    assert sent[3:] == messages


_CALL = {"id": "a", "type": "function", "function": {"name": "read", "arguments": '{"path": "p"}'}}
_RESULT = {"role": "tool", "tool_call_id": "a", "content": "ok"}


@pytest.mark.parametrize("content", [None, "", "Let me see."])
def test_calls_beside_the_clients_stand_among_them(content: str | None) -> None:
    reply = {"role": "assistant", "content": content, "tool_calls": [_CALL]}
    sent = splice_as([_RECALLED, _BOTH], [reply, _RESULT])
    assert sent is not None
    assert [message.get("tool_call_id") for message in sent] == [None, None, "r", None, "r", "s", "a"]
    assert [call["id"] for call in sent[3]["tool_calls"]] == ["r", "a", "s"]
    assert find_violation({"model": "m", "messages": sent, "tools": [_TOOL]}) is None


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "content": "", "tool_calls": [_CALL]}],
        [{"role": "assistant", "content": "", "tool_calls": [_CALL]}, _USER],
        [{"role": "assistant", "content": "", "tool_calls": [_CALL, _CALL]}, _RESULT],
        [{"role": "assistant", "content": "", "tool_calls": [{**_CALL, "id": "b"}]}, _RESULT],
        [{"role": "assistant", "content": "Other.", "tool_calls": [_CALL]}, _RESULT],
    ],
)
def test_without_the_clients_results_nothing_stands_beside_its_calls(messages: list[Any]) -> None:
    assert splice_as([_BOTH], messages) is None


def test_a_reply_of_several_messages_has_no_calls_beside_the_clients() -> None:
    messages = [{"role": "assistant", "content": ""}, {"role": "assistant", "tool_calls": [_CALL]}, _RESULT]
    assert splice_as([_BOTH], messages, 2) is None


def test_a_call_that_came_without_an_id_has_the_clients() -> None:
    body = parse_body(make_body([_USER, {"role": "assistant", "tool_calls": [_CALL]}, _RESULT]))
    assert splice(body, 1, 2, [], ReplyMark(calls=("",))) == []
    assert splice(body, 1, 2, [], make_reply_mark(["a"], [])) == []
    assert splice(body, 1, 2, [], make_reply_mark([], [])) is None


def test_nothing_continues_without_a_recall() -> None:
    assert continue_reply(parse_body(make_body([_USER])), []) == []
