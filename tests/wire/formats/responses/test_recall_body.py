import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.recall import make_reply_mark
from tests.shared_data import requires_shared
from tests.wire.formats.responses.turns import (
    TOOLS,
    Turn,
    draw_turns,
    recall,
    render,
    render_body,
    say,
    stitch,
)
from tests.wire.recorded import load_responses

_ECHO = b', {"type": "function", "name": "recall_history", "parameters": {}}'


@given(draw_turns(), st.integers(0, 1_000))
def test_the_client_sees_one_response_without_any_recall(turn: Turn, seed: int) -> None:
    bodies = [render_body(items, number) for number, items in enumerate(turn.responses)]
    stitched = stitch(bodies, seed=seed)
    response = json.loads(stitched.data)
    assert response["output"] == turn.shown
    assert response["id"] == "resp_0"
    assert response["tools"] == TOOLS
    assert response["usage"]["input_tokens"] == 100 + len(turn.responses) - 1
    calls = [item["call_id"] for item in turn.shown if item["type"] == "function_call"]
    texts = [item["content"][0]["text"] for item in turn.shown if item["type"] == "message"]
    assert stitched.stitcher.reply == make_reply_mark(calls, texts)


@given(draw_turns())
def test_it_asks_for_the_same_as_a_stream_does(turn: Turn) -> None:
    whole = stitch([render_body(items) for items in turn.responses]).requests
    streamed = stitch([render(items) for items in turn.responses]).requests
    for one, other in zip(whole, streamed, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert (one.calls, one.shown, one.said) == (other.calls, other.shown, other.said)
        assert one.is_parallel == other.is_parallel
        assert json.loads(f"[{one.call}]") == json.loads(f"[{other.call}]")
        assert json.loads(f"[{one.reply}]") == json.loads(f"[{other.reply}]")


@given(draw_turns())
def test_without_a_recall_every_byte_stays(turn: Turn) -> None:
    body = render_body(turn.shown).replace(_ECHO, b"").replace(b'"status"', b'\n "status"')
    stitched = stitch([body])
    assert stitched.data == body
    assert stitched.requests == [None]


def test_nothing_is_shown_before_the_end() -> None:
    said = say("0", "Hm.")
    stitched = stitch([render_body([said, recall("r")])])
    assert not stitched.stitcher.has_shown
    assert json.loads(stitched.data)["output"] == [said]
    assert b"recall_history" not in stitched.data


def test_items_that_stay_keep_their_bytes() -> None:
    odd = (
        b'{ "type":"message", "role":"assistant", "content":"\\u00e9\\/ \\ud83d", "big":1234567890123456789 }'
    )
    body = render_body([say("0", "@"), recall("r")])
    body = body.replace(json.dumps(say("0", "@")).encode(), odd)
    stitched = stitch([body])
    assert odd in stitched.data and b"recall_history" not in stitched.data


def test_an_incomplete_response_is_not_followed() -> None:
    stitched = stitch([render_body([recall("r")], finish="length")])
    assert stitched.requests == [None]
    assert json.loads(stitched.data)["output"] == []
    assert json.loads(stitched.data)["status"] == "incomplete"


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
        b'{"object":"response"}',
        b'{"object":"response","status":"completed","output":"x"}',
        b'{"object":"response","status":"completed","output":[1,"recall_history"]}',
        b'{"object":"response","status":"completed","output":[{"type":"function_call"}]',
        b'{"object":"response","object":"response","status":"completed","output":[{"name":"recall_history"}]}',
        b'{"object":"response","status":"completed","tools":["recall_history"],"output":[]}',
        b'\xff{"object":"response"}',
        b"[" * 100_000,
    ],
)
def test_odd_bodies_pass_as_they_came(body: bytes) -> None:
    assert stitch([body]).data == body


@given(st.binary(max_size=300))
def test_odd_bytes_pass_as_they_came(body: bytes) -> None:
    assert stitch([body]).data == body
