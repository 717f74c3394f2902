"""Searches by a tool of the gateway's own: what a client sees of a turn, and where they come back."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.core.history.recall import RecallRound, ReplyMark
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.recall import (
    RECALL_TOOL,
    AnsweredRecall,
    Insertion,
    RecallCall,
    RecallRequest,
    RecallSyntax,
    ReplyStitcher,
)
from gateway.wire.request import RequestBody
from gateway.wire.response.held_events import MAX_HELD_BYTES
from gateway.wire.structure import UNBOUNDED
from tests.examples import examples
from tests.shared_data import requires_shared
from tests.toy.recalling import ScriptClient, join_replies
from tests.toy.reply import Reply
from tests.wire.recorded import cut, cut_anywhere, load_responses, spoil
from tests.wire.shapes import JSON, SHAPES, THINKING, Shape, in_each_format, say
from tests.wire.turns import STYLES, ServerStyle, list_own, make_call, read_stream, render_stream, turns

few = examples(25, exhaustive=200)
streamed_or_whole = pytest.mark.parametrize("is_streamed", [True, False], ids=["stream", "whole"])
_OWN_TOOLS: dict[str, JSON] = {
    "chat": {"type": "function", "function": {"name": "read", "parameters": {}}},
    "messages": {"name": "read", "input_schema": {"type": "object"}},
    "responses": {"type": "function", "name": "read", "parameters": {}},
}
_SEARCH = Reply(text="Hm.", tool_calls=(make_call(1),), mark="m1")
_BESIDE = Reply(text="Hm.", tool_calls=(make_call(1, "read"), make_call(2)), mark="m1")
_FOUND = Reply(text="Found.", mark="m2")


def syntax(shape: Shape) -> RecallSyntax:
    assert shape.wire.recall is not None
    return shape.wire.recall


def head(shape: Shape, **fields: Any) -> JSON:
    """A request of a client with a tool."""
    own: dict[str, JSON] = {"messages": {"max_tokens": 2_000}, "responses": {"store": False}}
    base: JSON = {"model": "toy", "tools": [_OWN_TOOLS[shape.name]], shape.array: [say("user", "Where?")]}
    return base | own.get(shape.name, {}) | fields


def parse(shape: Shape, request: JSON) -> RequestBody:
    return shape.wire.parse_body(json.dumps(request).encode(), UNBOUNDED)


def insert(body: RequestBody, insertions: Sequence[Insertion]) -> bytes:
    """Several at one place keep their order."""
    joined: dict[int, bytes] = {}
    for at, new in insertions:
        joined[at] = joined.get(at, b"") + new
    return apply_edits(body.data, [Edit(at, at, new) for at, new in joined.items()])


@dataclass
class Stitched:
    """What went to the client, and what each response asked for."""

    data: bytes
    requests: list[RecallRequest | None]
    stitcher: ReplyStitcher
    answered: list[AnsweredRecall]

    @property
    def rounds(self) -> list[RecallRound]:
        names = ("call", "shown", "said", "is_parallel")
        return [
            RecallRound(results=results, **{name: getattr(request, name) for name in names})
            for request, results in self.answered
        ]


def stitch(shape: Shape, bodies: Sequence[bytes], seed: int | None = None) -> Stitched:
    """seed: of the places at which the bytes are cut."""
    stitcher, sent, requests, answered = syntax(shape).make_stitcher(), list[bytes](), [], []
    for body in bodies:
        sent += [stitcher.feed(piece) for piece in ([body] if seed is None else cut_anywhere(body, seed))]
        requests.append(request := stitcher.end())
        if request is not None:
            found = [f"found {call.id}: {call.query}" for call in request.calls]
            answered.append(AnsweredRecall(request, syntax(shape).render_results(request, found)))
    return Stitched(b"".join([*sent, stitcher.finish()]), requests, stitcher, answered)


def render(shape: Shape, reply: Reply, number: int = 1, *, is_streamed: bool = True) -> bytes:
    return shape.stream(reply, number) if is_streamed else shape.answer(reply, number, **THINKING)


def render_all(shape: Shape, replies: Sequence[Reply], *, is_streamed: bool) -> list[bytes]:
    return [render(shape, reply, at, is_streamed=is_streamed) for at, reply in enumerate(replies, 1)]


@few
@in_each_format
@streamed_or_whole
@given(replies=turns(), seed=st.integers(0, 1_000))
def test_a_client_sees_one_reply_without_any_search(
    shape: Shape, is_streamed: bool, replies: list[Reply], seed: int
) -> None:
    bodies = render_all(shape, replies, is_streamed=is_streamed)
    stitched = stitch(shape, bodies)
    assert stitch(shape, bodies, seed).data == stitched.data
    # A body of Chat has room for one message: the last one.
    seen = replies[-1:] if shape.name == "chat" and not is_streamed else replies
    client = ScriptClient(dialect=shape.dialect, head=head(shape))
    shown, expected = client.take(stitched.data), join_replies(seen)
    assert (shown.text, shown.calls) == (expected.text, expected.calls)
    assert shown.thinking == expected.thinking or shape.name == "responses"
    assert stitched.stitcher.reply.calls or not expected.calls
    assert shape.dialect.is_whole(stitched.data) and RECALL_TOOL.encode() not in stitched.data
    if len(bodies) == 1 and not list_own(replies[0]):
        assert stitched.data == bodies[0]


def find_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value if isinstance(value, list) else value.values():
            yield from find_texts(inner)


@few
@in_each_format
@streamed_or_whole
@given(replies=turns())
def test_each_response_asks_for_its_searches(shape: Shape, is_streamed: bool, replies: list[Reply]) -> None:
    stitched = stitch(shape, render_all(shape, replies, is_streamed=is_streamed))
    for reply, request in zip(replies, stitched.requests, strict=True):
        own = list_own(reply)
        if request is None:
            assert not own
            continue
        assert request.calls == tuple(
            RecallCall(call.id, json.loads(call.arguments)["query"]) for call in own
        )
        assert request.is_parallel == (len(own) < len(reply.tool_calls))
        assert (request.reply == "") == request.is_parallel
        assert all(call.id in request.call for call in own)
        said = "".join(find_texts(json.loads(f"[{request.reply}]")))
        assert (reply.text or "") in said or request.is_parallel


@few
@given(replies=turns(), style=STYLES, size=st.integers(1, 50))
def test_however_a_server_streams_chat_the_reply_is_one(
    replies: list[Reply], style: ServerStyle, size: int
) -> None:
    streams = [render_stream(reply, style, number) for number, reply in enumerate(replies, 1)]
    stitcher, shown, queries = syntax(SHAPES["chat"]).make_stitcher(), list[bytes](), []
    for stream in streams:
        shown += [stitcher.feed(piece) for piece in cut(stream, size)]
        request = stitcher.end()
        queries.append([call.query for call in request.calls] if request else [])
    reply = read_stream(b"".join([*shown, stitcher.finish()]))
    calls = [call for call in replies[-1].tool_calls if call.name != RECALL_TOOL]
    assert reply.drawn_calls == calls
    if style.numbering == "each":
        assert [call["index"] for call in reply.calls] == list(range(len(calls)))
    assert reply.text.split() == "\n\n".join(each.text for each in replies if each.text).split()
    assert reply.thoughts == "".join(each.thinking or "" for each in replies)
    assert reply.roles[:1] == ["assistant"] and (style.role_always or reply.roles == ["assistant"])
    assert reply.heads == {("c1-1", 5, "m")}
    assert reply.finish_reasons == ["tool_calls" if calls else "stop"] and reply.is_done
    assert reply.usage is not None and reply.usage["prompt_tokens"] == 10 * len(replies)
    expected = [[json.loads(call.arguments)["query"] for call in list_own(each)] for each in replies]
    assert queries == expected
    if len(streams) == 1 and not queries[0]:
        assert b"".join(shown) in streams[0]


def go_on(shape: Shape, stitched: Stitched, rewrite: Any = lambda item: item) -> tuple[RequestBody, int, int]:
    """The client's next request, and where its reply begins and ends among the messages."""
    client = ScriptClient(dialect=shape.dialect, head=head(shape), rewrite=rewrite)
    shown = client.take(stitched.data)
    end = len(parse(shape, client.head).places)
    if shown.calls:
        client.answer(shown)
    else:
        client.say("Go on.")
    return parse(shape, client.head), 1, end


@few
@in_each_format
@given(replies=turns())
def test_searches_come_back_at_the_same_place_as_when_the_model_went_on(
    shape: Shape, replies: list[Reply]
) -> None:
    stitched = stitch(shape, render_all(shape, replies, is_streamed=True))
    assume(stitched.rounds)
    body, first, end = go_on(shape, stitched)
    insertions = syntax(shape).splice(body, first, end, stitched.rounds, stitched.stitcher.reply)
    assert insertions is not None
    sent = insert(body, insertions)
    for new in (insertion.new for insertion in insertions):
        assert new in sent
    assert shape.find_violation(shape.load(sent)) is None
    units = shape.dialect.items(shape.load(sent))
    asked = parse(shape, head(shape))
    solo = [each for each in stitched.answered if not each.request.is_parallel]
    for count in range(len(solo) + 1):
        earlier = insert(asked, syntax(shape).continue_reply(asked, solo[:count]))
        assert shape.find_violation(shape.load(earlier)) is None
        before = shape.dialect.items(shape.load(earlier))
        assert units[: len(before)] == before
    text = json.dumps(shape.load(sent), ensure_ascii=False)
    found = [text.index(f"found {call.id}:") for request, _ in stitched.answered for call in request.calls]
    assert found == sorted(found)
    # A longer request begins with the same bytes.
    items = [*shape.values(body.data), say("user", "More.")]
    more = parse(shape, shape.load(body.data) | {shape.array: items})
    later = syntax(shape).splice(more, first, end, stitched.rounds, stitched.stitcher.reply)
    kept = shape.wire.parse_body(sent, UNBOUNDED).places
    assert later is not None and insert(more, later).startswith(sent[: kept[len(kept) - 1].end])


@in_each_format
@pytest.mark.parametrize("search", [_SEARCH, _BESIDE], ids=["alone", "beside"])
def test_nothing_is_inserted_into_another_reply(shape: Shape, search: Reply) -> None:
    replies = [_SEARCH, _FOUND] if search is _SEARCH else [_BESIDE]
    stitched = stitch(shape, render_all(shape, replies, is_streamed=True))
    body, first, end = go_on(shape, stitched)
    mark, rounds = stitched.stitcher.reply, stitched.rounds
    assert syntax(shape).splice(body, first, end, rounds, mark) is not None
    for other in (ReplyMark(text="x"), replace(mark, calls=("other",)), ReplyMark()):
        assert syntax(shape).splice(body, first, end, rounds, other) is None
    user = parse(shape, head(shape))
    assert syntax(shape).splice(user, 0, 1, rounds, mark) is None


@pytest.mark.parametrize("name", ["chat", "messages"])
def test_without_the_clients_results_nothing_stands_beside_its_calls(name: str) -> None:
    shape = SHAPES[name]
    stitched = stitch(shape, [render(shape, _BESIDE)])
    body, first, end = go_on(shape, stitched)
    bare = parse(shape, head(shape, **{shape.array: shape.values(body.data)[:end]}))
    assert syntax(shape).splice(bare, first, end, stitched.rounds, stitched.stitcher.reply) is None


@in_each_format
@streamed_or_whole
def test_a_search_that_is_not_followed_ends_the_reply_as_one_without_calls(
    shape: Shape, is_streamed: bool
) -> None:
    data = stitch(shape, [render(shape, _SEARCH, is_streamed=is_streamed)]).data
    client = ScriptClient(dialect=shape.dialect, head=head(shape))
    assert (client.take(data).text, RECALL_TOOL.encode() in data) == ("Hm.", False)
    assert not any(
        word in data for word in (b'"tool_use"', b'"tool_calls"}', b'"finish_reason":"tool_calls"')
    )


@in_each_format
@streamed_or_whole
def test_a_response_that_was_cut_off_is_not_followed(shape: Shape, is_streamed: bool) -> None:
    body = render(shape, replace(_SEARCH, finish_reason="length"), is_streamed=is_streamed)
    stitched = stitch(shape, [body])
    assert stitched.requests == [None] and RECALL_TOOL.encode() not in stitched.data


@few
@in_each_format
@given(data=st.data())
def test_a_stream_that_breaks_off_shows_nothing_of_a_search(shape: Shape, data: st.DataObject) -> None:
    body = shape.stream(replace(_SEARCH, delta_chars=3))
    size = data.draw(st.integers(0, len(body) - 40))
    stitched = stitch(shape, [body[:size]])
    # In Chat a call is held back by the event, and what comes of one without its end is read by no client.
    shown = stitched.data.rpartition(b"\n\n")[0] if shape.name == "chat" else stitched.data
    assert RECALL_TOOL.encode() not in shown and b"query" not in shown
    ends = (
        b"message_stop",
        b"response.completed",
        b'"finish_reason":"tool_calls"',
        b'"finish_reason": "tool',
    )
    assert stitched.requests == [None] or any(end in body[:size] for end in ends)


@in_each_format
def test_text_flows_at_once_and_a_search_alone_shows_nothing(shape: Shape) -> None:
    stitcher, body = syntax(shape).make_stitcher(), shape.stream(_SEARCH)
    at = body.rindex(b"\n\n", 0, body.index(RECALL_TOOL.encode())) + 2
    assert stitcher.feed(body[:at]) == body[:at] and stitcher.has_shown
    silent = syntax(shape).make_stitcher()
    silent.feed(shape.stream(replace(_SEARCH, text=None)))
    assert not silent.has_shown


@in_each_format
def test_what_is_held_behind_the_end_is_bounded(shape: Shape) -> None:
    stitcher, comment = syntax(shape).make_stitcher(), b": " + b"x" * 1_000_000 + b"\n\n"
    count = MAX_HELD_BYTES // 1_000_000
    assert comment not in stitcher.feed(shape.stream(replace(_SEARCH, text=None)) + comment * count)
    assert stitcher.feed(comment).count(comment) == count + 1
    assert stitcher.feed(comment) == comment and stitcher.end() is None and stitcher.finish() == b""


@in_each_format
@pytest.mark.parametrize("arguments", ["{", "[]", '{"query":1}', "x", '{"query":" "}'])
def test_arguments_that_cannot_be_read_are_a_search_without_a_query(shape: Shape, arguments: str) -> None:
    stream = shape.stream(replace(_SEARCH, tool_calls=(replace(make_call(1), arguments=arguments),)))
    (request,) = stitch(shape, [stream]).requests
    assert request is not None
    assert [call.query for call in request.calls] in ([None], [" "])


@few
@in_each_format
@given(replies=turns(), data=st.data())
def test_spoiled_streams_never_raise(shape: Shape, replies: list[Reply], data: st.DataObject) -> None:
    """Events are lost, repeated or exchanged, and bytes are changed."""
    stitched = stitch(shape, [spoil(data, body) for body in render_all(shape, replies, is_streamed=True)])
    assert isinstance(stitched.stitcher.reply.text, str)
    assert all(request is None or request.calls for request in stitched.requests)


_ODD = [
    *(b"", b" \n", b"\xef\xbb\xbf\n\n", b"not a stream", b"[1,2]", b"{", b"null", b"[" * 100_000),
    *(b'{"choices":[{"message":{"tool_calls":[7,null]}}]}', b"data: {\n\ndata: 7\n\n", b"data: {}"),
    b'data: {"choices":[{"delta":{"tool_calls":[null,{"index":"x","function":7}]}}]}\n\n: x\n\ndata: a',
    b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"recall"}}]}}]}\n\ndata: [DONE]\n\n',
    b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\r\rdata: {"a":NaN}\r\r',
    *(b'{"type":"message","content":[{"type":"tool_use","name":"recall_history"}]', b'{"object":"response"}'),
    b'{"object":"response","status":"completed","output":[1,"recall_history"]}',
    b'data: {"type":"response.created","response":{"tools":"recall_history"}}\n\n',
    b'data: {"type":"response.output_item.done","output_index":-1,"item":[]}\n\n',
    b'data: {"type":"error","sequence_number":"x"}\n\n',
    b'data: {"choices":[{"delta":{"content":"' + b"x" * 5_000_000 + b'"}}]}\n\n',
]


@in_each_format
def test_what_is_not_understood_passes_as_it_came(shape: Shape) -> None:
    for body in _ODD:
        for chunks in ([body], cut(body, max(1, len(body) // 7))):
            stitcher = syntax(shape).make_stitcher()
            shown = b"".join(map(stitcher.feed, chunks))
            assert stitcher.end() is None and shown + stitcher.finish() == body


@in_each_format
@given(body=st.binary(max_size=60), seed=st.integers(0, 99))
def test_any_bytes_pass(shape: Shape, body: bytes, seed: int) -> None:
    assert stitch(shape, [body], seed).data == body


@requires_shared
@in_each_format
def test_recorded_responses_without_a_search_pass_byte_for_byte(shape: Shape) -> None:
    for response in load_responses()[::3]:
        assert stitch(shape, [response.body], seed=1).data == response.body


def with_tools(shape: Shape, *tools: object) -> JSON:
    return {"tools": [_OWN_TOOLS[shape.name], *tools]}


_CLASH: dict[str, JSON] = {
    "chat": {"type": "function", "function": {"name": RECALL_TOOL}},
    "messages": {"name": RECALL_TOOL, "input_schema": {}},
    "responses": {"type": "function", "name": RECALL_TOOL},
}
_REFUSING: dict[str, list[JSON]] = {
    "chat": [
        *({"n": 2}, {"store": True}, {"functions": []}, {"function_call": "auto"}, {"audio": {"voice": "a"}})
    ],
    "messages": [
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        with_tools(SHAPES["messages"], {"type": "code_execution_20250825", "name": "x"}),
        *({"thread": {"type": "create"}}, {"container": "container_1"}),
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"messages": [say("user", "a"), say("assistant", "It")]},
    ],
    "responses": [
        *({"store": True}, {"store": None}, {"background": True}, {"conversation": "c"}),
        *({"previous_response_id": "r"}, {"context_management": [{"type": "compaction"}]}),
        {"input": [say("user", "a"), {"type": "item_reference", "id": "msg_1"}]},
    ],
}


@in_each_format
def test_the_tool_stands_behind_the_clients_own(shape: Shape) -> None:
    body = parse(shape, head(shape))
    assert syntax(shape).may_offer(body)
    sent = shape.load(insert(body, [syntax(shape).make_tool(body)]))
    assert shape.find_violation(sent) is None and sent[shape.array] == head(shape)[shape.array]
    own, added = sent["tools"]
    assert own == _OWN_TOOLS[shape.name]
    assert added.get("function", added)["name"] == RECALL_TOOL and '"query"' in json.dumps(added)


@in_each_format
def test_without_tools_or_with_one_of_its_name_it_is_not_offered(shape: Shape) -> None:
    clashes: list[Any] = [[], None, {}, [7], with_tools(shape, _CLASH[shape.name])["tools"]]
    for tools in clashes:
        assert not syntax(shape).may_offer(parse(shape, head(shape, tools=tools)))
    with pytest.raises(ValueError, match="no tools"):
        syntax(shape).make_tool(
            parse(shape, {key: value for key, value in head(shape).items() if key != "tools"})
        )


@in_each_format
def test_where_it_cannot_be_served_right_it_is_not_offered(shape: Shape) -> None:
    for fields in _REFUSING[shape.name]:
        assert not syntax(shape).may_offer(parse(shape, head(shape, **fields))), fields


@in_each_format
def test_an_exchange_is_a_question_and_its_answer(shape: Shape) -> None:
    found = json.loads(b"[%s]" % syntax(shape).render_exchange("What was it?", "Found: x"))
    assert [item["role"] for item in found] == ["user", "assistant"]
    request = head(shape, **{shape.array: [*found, say("user", "So?")]})
    assert shape.find_violation(request) is None and "Found: x" in json.dumps(found)
