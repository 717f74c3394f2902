import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.recall import make_reply_mark
from tests.shared_data import requires_shared
from tests.wire.formats.messages.turns import (
    Turn,
    call,
    draw_turns,
    recall,
    render,
    render_body,
    say,
    stitch,
)
from tests.wire.recorded import load_responses


@given(draw_turns(), st.integers(0, 1_000))
def test_the_client_sees_one_message_without_any_recall(turn: Turn, seed: int) -> None:
    bodies = [render_body(blocks, number) for number, blocks in enumerate(turn.responses)]
    stitched = stitch(bodies, seed=seed)
    message = json.loads(stitched.data)
    assert message["content"] == turn.shown
    assert message["id"] == "msg_0"
    assert message["stop_reason"] == turn.stop
    assert message["usage"]["input_tokens"] == 100 + len(turn.responses) - 1
    calls = [block["id"] for block in turn.shown if block["type"] == "tool_use"]
    texts = [block["text"] for block in turn.shown if block["type"] == "text"]
    assert stitched.stitcher.reply == make_reply_mark(calls, texts)


@given(draw_turns())
def test_it_asks_for_the_same_as_a_stream_does(turn: Turn) -> None:
    """In a stream, arguments and texts are written anew."""
    whole = stitch([render_body(blocks) for blocks in turn.responses]).requests
    streamed = stitch([render(blocks) for blocks in turn.responses]).requests
    for one, other in zip(whole, streamed, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert (one.calls, one.shown, one.said) == (other.calls, other.shown, other.said)
        assert one.is_parallel == other.is_parallel
        assert json.loads(one.reply or "null") == json.loads(other.reply or "null")
        assert json.loads(f"[{one.call}]") == json.loads(f"[{other.call}]")


@given(draw_turns())
def test_without_a_recall_every_byte_stays(turn: Turn) -> None:
    body = render_body(turn.shown).replace(b", ", b",\n ")
    stitched = stitch([body])
    assert stitched.data == body
    assert stitched.requests == [None]


def test_nothing_is_shown_before_the_end() -> None:
    stitched = stitch([render_body([say("Hm."), recall("r")])])
    assert not stitched.stitcher.has_shown
    assert json.loads(stitched.data)["content"] == [say("Hm.")]
    assert json.loads(stitched.data)["stop_reason"] == "end_turn"


def test_blocks_that_stay_keep_their_bytes() -> None:
    odd = b'{ "type":"text", "text":"\\u00e9\\/ \\ud83d", "big":12345678901234567890123 }'
    body = render_body([say("@"), recall("r"), call("look", "own")])
    body = body.replace(json.dumps(say("@")).encode(), odd)
    stitched = stitch([body])
    assert odd in stitched.data and b"recall_history" not in stitched.data


def test_a_message_that_was_cut_off_is_not_followed() -> None:
    stitched = stitch([render_body([recall("r")], stop="max_tokens")])
    assert stitched.requests == [None]
    assert json.loads(stitched.data)["content"] == []
    assert json.loads(stitched.data)["stop_reason"] == "max_tokens"


@requires_shared
def test_bodies_of_other_kinds_pass_as_they_came() -> None:
    for response in [r for r in load_responses() if not r.is_stream][:20]:
        assert stitch([response.body], seed=1).data == response.body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"type":"message"}',
        b'{"type":"message","content":"x"}',
        b'{"type":"message","content":[1]}',
        b'{"type":"message","content":[{"type":"tool_use","name":"recall_history"}]',
        b'{"type":"message","content":[{"type":"tool_use","name":"recall_history","input":{}}],"type":"x"}',
        b'\xff{"type":"message","content":[]}',
        b"[" * 100_000,
    ],
)
def test_odd_bodies_pass_as_they_came(body: bytes) -> None:
    assert stitch([body]).data == body


@given(st.binary(max_size=300))
def test_odd_bytes_pass_as_they_came(body: bytes) -> None:
    assert stitch([body]).data == body
