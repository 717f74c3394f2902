import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.history.recall import ReplyMark, make_reply_mark
from gateway.wire.formats.chat.stitcher import ChatStitcher
from gateway.wire.recall import RECALL_TOOL, RecallRequest
from tests.shared_data import requires_shared
from tests.wire.formats.chat.turns import (
    STYLES,
    DrawnCall,
    DrawnResponse,
    ServerStyle,
    list_queries,
    read_stream,
    render_stream,
    render_whole,
    turns,
)
from tests.wire.recorded import cut, cut_anywhere, load_responses

_RECALL = DrawnCall("r1", RECALL_TOOL, '{"query":"x"}')
_READ = DrawnCall("a1", "read", '{"path":"p"}')


def stitch(
    responses: list[bytes], size: int = 1 << 20
) -> tuple[bytes, list[RecallRequest | None], ReplyMark]:
    stitcher = ChatStitcher()
    shown, requests = [], []
    for response in responses:
        shown += [stitcher.feed(piece) for piece in cut(response, size)]
        requests.append(stitcher.end())
    return b"".join([*shown, stitcher.finish()]), requests, stitcher.reply


@requires_shared
def test_recorded_responses_without_a_recall_pass_byte_for_byte() -> None:
    responses = load_responses()
    for seed, response in enumerate(responses):
        stitcher = ChatStitcher()
        shown = [stitcher.feed(piece) for piece in cut_anywhere(response.body, seed)]
        assert stitcher.end() is None
        assert b"".join([*shown, stitcher.finish()]) == response.body
    assert len(responses) > 100


@settings(max_examples=60)
@given(turns(), STYLES, st.integers(1, 50))
def test_a_client_sees_one_reply_without_recalls(
    responses: list[DrawnResponse], style: ServerStyle, size: int
) -> None:
    streams = [render_stream(response, style, number) for number, response in enumerate(responses, 1)]
    shown, requests, mark = stitch(streams, size)
    assert shown == stitch(streams)[0]
    reply = read_stream(shown)
    own = [[call for call in response.calls if call.is_own] for response in responses]
    calls = [call for call in responses[-1].calls if not call.is_own]
    assert reply.drawn_calls == calls
    if style.numbering == "each":
        assert [call["index"] for call in reply.calls] == list(range(len(calls)))
    assert reply.text.split() == _join_texts(responses).split()
    assert reply.thoughts == "".join("".join(response.thoughts) for response in responses)
    assert reply.roles[:1] == ["assistant"]
    assert style.role_always or reply.roles == ["assistant"]
    assert reply.heads == {("c1-1", 5, "m")}
    assert reply.finish_reasons == ["tool_calls" if calls else "stop"]
    assert reply.is_done
    if style.usage != "none":
        assert reply.usage is not None
        assert reply.usage["prompt_tokens"] == 10 * len(responses)
    assert mark == make_reply_mark([call.id for call in calls], [reply.text])
    asked = [list_queries(request) if request else [] for request in requests]
    assert asked == [[_read_query(call) for call in calls] for calls in own]
    if len(streams) == 1 and not own[0]:
        assert shown == streams[0]


def _read_query(call: DrawnCall) -> str | None:
    query: str = json.loads(call.arguments)["query"]
    return query if query.strip() else None


def _join_texts(responses: list[DrawnResponse]) -> str:
    joined = ""
    for response in responses:
        text = "".join(response.texts)
        is_gap = bool(joined and text) and not (joined[-1].isspace() or text[0].isspace())
        joined += ("\n\n" if is_gap else "") + text
    return joined


@given(turns(), st.sampled_from([None, 1]), st.integers(1, 50))
def test_a_response_that_is_not_streamed_shows_only_the_last_one(
    responses: list[DrawnResponse], indent: int | None, size: int
) -> None:
    bodies = [render_whole(response, number, indent) for number, response in enumerate(responses, 1)]
    shown, requests, mark = stitch(bodies, size)
    expected = json.loads(bodies[-1])
    message = expected["choices"][0]["message"]
    if "tool_calls" in message:
        message["tool_calls"] = [c for c in message["tool_calls"] if c["function"]["name"] != RECALL_TOOL]
    assert json.loads(shown) == expected
    last = responses[-1]
    if not any(call.is_own for call in last.calls):
        assert shown == bodies[-1]
    ids = [call.id for call in last.calls if not call.is_own]
    assert mark == make_reply_mark(ids, last.texts)
    for response, request in zip(responses, requests, strict=True):
        assert (request is not None) == any(call.is_own for call in response.calls)
        if request is not None and response.is_solo:
            sent = json.loads(bodies[responses.index(response)])["choices"][0]["message"]
            kept = json.loads(request.reply)
            if not (sent["content"] or "").strip():
                sent["content"] = None
            assert kept == sent


def test_a_call_that_is_not_followed_is_taken_out_and_the_reply_ends() -> None:
    response = DrawnResponse(("Hm.",), (), (_RECALL,))
    shown, requests, mark = stitch([render_stream(response, ServerStyle())])
    reply = read_stream(shown)
    assert requests[0] is not None
    assert (reply.text, reply.calls, reply.finish_reasons) == ("Hm.", [], ["stop"])
    assert mark == make_reply_mark([], ["Hm."])
    whole = json.loads(stitch([render_whole(response)])[0])["choices"][0]
    assert whole == {
        "index": 0,
        "message": {"role": "assistant", "content": "Hm.", "tool_calls": None},
        "finish_reason": "stop",
    }


@pytest.mark.parametrize("reason", ["length", "content_filter", "model_context_window_exceeded"])
def test_of_a_reply_that_is_cut_off_in_a_call_the_call_is_not_shown(reason: str) -> None:
    response = DrawnResponse(("Hm.",), (), (_RECALL,))
    for body in (render_stream(response, ServerStyle()), render_whole(response)):
        shown, requests, _ = stitch([body.replace(b'"tool_calls"}', b'"%s"}' % reason.encode())])
        assert requests == [None]
        assert RECALL_TOOL.encode() not in shown
        assert reason.encode() in shown


def test_a_stream_that_breaks_off_is_no_recall() -> None:
    stream = render_stream(DrawnResponse((), (), (_RECALL,)), ServerStyle(usage="none"))
    broken = stream[: stream.index(b'"tool_calls"}')]
    stitcher = ChatStitcher()
    stitcher.feed(broken)
    assert stitcher.end() is None
    assert not stitcher.has_shown
    # Another one may follow.
    again = stitcher.feed(render_stream(DrawnResponse(("Yes.",)), ServerStyle(), 2))
    assert stitcher.end() is None
    reply = read_stream(b'data: {"id":"c1-1","created":5,"model":"m","choices":[]}\n\n' + again)
    assert reply.text == "Yes."
    assert stitcher.reply == make_reply_mark([], ["Yes."])


def test_an_error_in_the_stream_passes_and_is_no_recall() -> None:
    stream = render_stream(DrawnResponse((), (), (_RECALL,)), ServerStyle())
    for error in (b'data: {"error":{"message":"no"}}\n\n', b"event: error\ndata: no\n\n"):
        shown, requests, _ = stitch([stream.replace(b"data: [DONE]", error + b"data: [DONE]")])
        assert requests == [None]
        assert error in shown


def test_text_flows_at_once_and_the_end_waits() -> None:
    stream = render_stream(DrawnResponse(("A", "B"), (), (_RECALL,)), ServerStyle())
    stitcher = ChatStitcher()
    shown = [stitcher.feed(event + b"\n\n") for event in stream.split(b"\n\n")[:-1]]
    assert [bool(piece) for piece in shown[:3]] == [True] * 3
    assert stitcher.has_shown
    assert b"".join(shown[3:]) == b""
    request = stitcher.end()
    assert request is not None
    assert json.loads(request.call)["content"] == "AB"


def test_calls_that_are_not_the_gateways_flow_at_once() -> None:
    stream = render_stream(DrawnResponse((), (), (_READ,)), ServerStyle(usage="none"))
    stitcher = ChatStitcher()
    events = [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]
    assert [stitcher.feed(event) for event in events[:-2]] == events[:-2]
    assert [stitcher.feed(event) for event in events[-2:]] == [b"", b""]
    assert stitcher.end() is None
    assert stitcher.finish() == b"".join(events[-2:])


def test_content_in_the_chunk_that_ends_a_response_is_shown() -> None:
    end = (
        b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"late","tool_calls":[{"index":0,"id":"r",'
    )
    end += b'"function":{"name":"recall_history","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}\n\n'
    stitcher = ChatStitcher()
    assert stitcher.feed(end) == b""
    request = stitcher.end()
    assert request is not None
    assert list_queries(request) == [None]
    expected = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"late"},"finish_reason":null}]}\n\n'
    assert stitcher.feed(b"") == expected
    assert stitcher.has_shown


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b" \n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n\n", b"not a stream", b"[1,2]", b"{", b"null"),
        *(b'{"choices":[]}', b'{"choices":[{"message":{"tool_calls":[7,null]}}]}', b"data: {\n\ndata: 7\n\n"),
        *(b"data: {}", b'data: {"choices":[{"delta":7}]}\n\n', b'data: {"choices":[7]}\n\ndata: [DONE]'),
        b'data: {"choices":[{"delta":{"tool_calls":[null,{"index":"x","function":7}]}}]}\n\n: x\n\ndata: a',
        b'data: {"choices":[{"index":1,"delta":{"tool_calls":[{"function":{"name":"recall_history"}}]}}]}\n',
        b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"recall"}}]}}]}\n\ndata: [DONE]\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
        b'data: {"choices":[{"delta":{"content":"' + b"x" * 5_000_000 + b'"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ud83d"}}]}\r\rdata: {"a":NaN}\r\r',
    ],
)
def test_what_is_not_understood_passes_as_it_came(body: bytes) -> None:
    assert stitch([body])[:2] == (body, [None])
    assert stitch([body], max(1, len(body) // 7))[0] == body


def test_a_body_of_blanks_passes_before_it_fills_the_memory() -> None:
    stitcher = ChatStitcher()
    shown = b"".join(stitcher.feed(b"\n" * 1_000) for _ in range(100))
    assert len(shown) > 30_000
    assert stitcher.end() is None
    assert shown + stitcher.finish() == b"\n" * 100_000


@given(st.binary(max_size=60), st.integers(1, 9))
def test_any_bytes_pass(body: bytes, size: int) -> None:
    assert stitch([body], size) == (body, [None], ReplyMark())


def test_a_chunk_with_repeated_keys_is_left_out_if_it_calls_the_tool() -> None:
    call = b'{"index":0,"id":"r","function":{"name":"recall_history","arguments":"{}"}}'
    chunk = b'data: {"id":"a","id":"b","choices":[{"index":0,"delta":{"tool_calls":[%s]}}]}\n\n' % call
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    shown, requests, _ = stitch([chunk + end])
    assert (shown, requests[0] is not None) == (end, True)


def test_a_text_cut_inside_an_emoji_has_the_mark_of_the_whole() -> None:
    chunks = [b'data: {"choices":[{"delta":{"content":"\\u%s"}}]}\n\n' % half for half in (b"d83d", b"de00")]
    shown, _, mark = stitch([b"".join(chunks)])
    assert shown == b"".join(chunks)
    assert mark == make_reply_mark([], ["\U0001f600"])


def test_a_stream_may_be_followed_by_one_after_it_broke_off_in_a_name() -> None:
    piece = b'data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"r","function":'
    stitcher = ChatStitcher()
    assert stitcher.feed(piece + b'{"name":"recall"}}]}}]}\n\n') == b""
    assert stitcher.end() is None
    assert stitcher.feed(b"data: [DONE]\n\n") == b""
    assert stitcher.end() is None
    assert stitcher.finish() == b"data: [DONE]\n\n"
    assert stitcher.reply == ReplyMark()
