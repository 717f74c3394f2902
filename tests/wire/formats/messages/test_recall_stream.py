import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.recall import make_reply_mark
from gateway.wire.formats.messages.recall_stream import MessagesStreamStitcher
from gateway.wire.response.held_events import MAX_HELD_BYTES
from gateway.wire.sse import SseEvent, render_event
from tests.shared_data import requires_shared
from tests.wire.formats.messages.turns import (
    Turn,
    call,
    draw_turns,
    read_events,
    read_message,
    recall,
    render,
    say,
    stitch,
    think,
)
from tests.wire.recorded import load_responses, spoil


def _stitch(turn: Turn, seed: int | None = None) -> bytes:
    bodies = [render(blocks, number) for number, blocks in enumerate(turn.responses)]
    return stitch(bodies, seed=seed).data


@given(draw_turns())
def test_the_client_sees_one_reply_without_any_recall(turn: Turn) -> None:
    stitched = stitch([render(blocks, number) for number, blocks in enumerate(turn.responses)])
    assert read_message(stitched.data) == turn.shown
    events = list(read_events(stitched.data))
    starts = [event for event in events if event["type"] == "message_start"]
    assert [start["message"]["id"] for start in starts] == ["msg_0"]
    ends = [event for event in events if event["type"] == "message_delta"]
    assert [end["delta"]["stop_reason"] for end in ends] == [turn.stop]
    assert ends[0]["usage"] == {"output_tokens": 10 + len(turn.responses) - 1}
    calls = [block["id"] for block in turn.shown if block["type"] == "tool_use"]
    texts = [block["text"] for block in turn.shown if block["type"] == "text"]
    assert stitched.stitcher.reply == make_reply_mark(calls, texts)


@given(draw_turns(), st.integers(0, 1_000))
def test_it_does_not_matter_how_the_streams_are_cut(turn: Turn, seed: int) -> None:
    assert _stitch(turn, seed) == _stitch(turn)


@given(draw_turns())
def test_each_response_but_the_last_asks_for_all_its_calls(turn: Turn) -> None:
    stitched = stitch([render(blocks, number) for number, blocks in enumerate(turn.responses)])
    shown = 0
    for blocks, request in zip(turn.responses, stitched.requests, strict=True):
        calls = [block for block in blocks if block.get("name") == "recall_history"]
        shown += len(blocks) - len(calls)
        if not calls:
            assert request is None
            continue
        assert request is not None
        assert [(each.id, each.query) for each in request.calls] == [
            (block["id"], block["input"]["query"]) for block in calls
        ]
        assert json.loads(f"[{request.call}]") == calls
        assert request.shown == shown
        assert request.is_parallel == any(block.get("name") == "look" for block in blocks)
        if not request.is_parallel:
            assert json.loads(request.reply) == blocks


@given(draw_turns())
def test_without_a_recall_every_byte_stays(turn: Turn) -> None:
    body = render(turn.shown)
    stitched = stitch([body])
    assert stitched.data == body
    assert stitched.requests == [None]


@requires_shared
def test_streams_of_other_kinds_pass_as_they_came() -> None:
    for response in [r for r in load_responses() if r.is_stream][:40]:
        assert stitch([response.body], seed=1).data == response.body


def test_the_client_sees_the_first_bytes_before_the_reply_has_ended() -> None:
    stitcher = MessagesStreamStitcher()
    body = render([think("Hm."), say("Here."), recall("r")])
    head = body[: body.index(b'event: content_block_start\ndata: {"type":"content_block_start","index":2')]
    assert stitcher.feed(body[: len(head)]) == head
    assert stitcher.has_shown


def test_a_call_alone_shows_nothing() -> None:
    stitcher = MessagesStreamStitcher()
    stitcher.feed(render([recall("r")]))
    assert not stitcher.has_shown


def test_a_call_that_is_not_followed_ends_the_reply_as_one_without_calls() -> None:
    stitched = stitch([render([say("Hm."), recall("r")])])
    assert read_message(stitched.data) == [say("Hm.")]
    assert b'"stop_reason":"end_turn"' in stitched.data
    assert b"recall_history" not in stitched.data


@pytest.mark.parametrize("stop", ["max_tokens", "pause_turn", "refusal", "model_context_window_exceeded"])
def test_a_response_that_ended_for_another_reason_is_not_followed(stop: str) -> None:
    stitched = stitch([render([say("Hm."), recall("r")], stop=stop)])
    assert stitched.requests == [None]
    assert read_message(stitched.data) == [say("Hm.")]
    assert f'"stop_reason":"{stop}"'.encode() in stitched.data


@given(st.data())
def test_a_response_that_breaks_off_shows_nothing_of_a_call(data: st.DataObject) -> None:
    body = render([say("Hm."), recall("r")])
    size = data.draw(st.integers(0, len(body) - 40))
    stitched = stitch([body[:size]])
    assert b"recall_history" not in stitched.data and b"partial_json" not in stitched.data
    if b"message_stop" not in body[:size]:
        assert stitched.requests == [None]
    without_call = render([say("Hm.")])
    shown = stitched.data.partition(b"event: message_delta")[0]
    assert body.startswith(shown) or without_call.startswith(shown)


def test_arguments_that_cannot_be_read_are_a_call_without_a_query() -> None:
    body = render([recall("r")]).replace(b'{\\"query', b"[[[[[[[")
    assert body != render([recall("r")])
    (request,) = stitch([body]).requests
    assert request is not None
    assert [(each.id, each.query) for each in request.calls] == [("r", None)]
    assert json.loads(request.call)["input"] == {}


def test_an_empty_text_is_shown_but_not_told_to_the_model() -> None:
    """The API gives such blocks, and refuses them in a request."""
    (request,) = stitch([render([say(" "), recall("r")])]).requests
    assert request is not None and json.loads(request.reply) == [recall("r")]
    assert (request.shown, request.said) == (1, 0)


def test_what_is_not_understood_passes_and_no_call_is_followed_then() -> None:
    unknown = {"type": "content_block_delta", "index": 0, "delta": {"type": "odd_delta"}}
    odd = render_event(SseEvent("content_block_delta", json.dumps(unknown).encode()))
    body = render([say("Hm."), recall("r")])
    at = body.index(b"event: content_block_stop")
    stitched = stitch([body[:at] + odd + body[at:]])
    assert stitched.requests == [None]
    assert odd in stitched.data and b"recall_history" not in stitched.data


def test_texts_may_be_cut_inside_an_emoji() -> None:
    body = render([say("Hm \U0001f600!"), recall("r")])
    whole = b'"text":"Hm \xf0\x9f\x98\x80!"'
    halves = [b'"text":"Hm \\ud83d"', b'"text":"\\ude00!"']
    start = body.rindex(b"event: ", 0, body.index(whole))
    end = body.index(b"\n\n", start) + 2
    event = body[start:end]
    body = body[:start] + b"".join(event.replace(whole, half) for half in halves) + body[end:]
    (request,) = stitch([body]).requests
    assert request is not None
    assert json.loads(request.reply) == [say("Hm \U0001f600!"), recall("r")]


@given(draw_turns(), st.data())
def test_spoiled_streams_never_raise(turn: Turn, data: st.DataObject) -> None:
    """Events are lost, repeated or exchanged, and bytes are changed."""
    bodies = [spoil(data, render(blocks, number)) for number, blocks in enumerate(turn.responses)]
    stitched = stitch(bodies)
    assert isinstance(stitched.stitcher.reply.text, str)
    for request in stitched.requests:
        assert request is None or (json.loads(f"[{request.call}]") and all(each.id for each in request.calls))


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_odd_bytes_pass_as_they_came(pieces: list[bytes]) -> None:
    assert stitch(pieces[:1]).data == b"".join(pieces[:1])


def test_an_error_behind_a_recall_is_shown() -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'
    stitched = stitch([render([recall("r")]), error])
    assert stitched.data.endswith(error)
    assert stitched.requests[1] is None


def test_parallel_calls_keep_the_reason_for_the_end() -> None:
    stitched = stitch([render([recall("r"), call("look", "own")])])
    assert read_message(stitched.data) == [call("look", "own")]
    assert b'"stop_reason":"tool_use"' in stitched.data


def test_what_is_held_behind_the_end_is_bounded() -> None:
    stitcher = MessagesStreamStitcher()
    comment = b": " + b"x" * 1_000_000 + b"\n\n"
    count = MAX_HELD_BYTES // 1_000_000
    assert comment not in stitcher.feed(render([recall("r")]) + comment * count)
    had_shown = stitcher.has_shown
    assert stitcher.feed(comment).count(comment) == count + 1
    assert (had_shown, stitcher.has_shown) == (False, True)
    assert stitcher.feed(comment) == comment
    assert stitcher.end() is None
    assert stitcher.finish() == b""
