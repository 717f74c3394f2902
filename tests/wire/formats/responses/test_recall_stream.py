import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.recall import make_reply_mark
from gateway.wire.formats.responses.history import ItemCollector
from gateway.wire.formats.responses.recall_stream import ResponsesStreamStitcher
from gateway.wire.response.held_events import MAX_HELD_BYTES
from tests.shared_data import requires_shared
from tests.wire.formats.responses.turns import (
    Turn,
    call,
    draw_turns,
    read_events,
    recall,
    render,
    say,
    stitch,
    think,
    without_echo,
)
from tests.wire.recorded import load_responses, parse_stream, spoil


def _stitch(turn: Turn, seed: int | None = None) -> bytes:
    bodies = [render(items, number) for number, items in enumerate(turn.responses)]
    return stitch(bodies, seed=seed).data


@given(draw_turns())
def test_the_client_sees_one_reply_without_any_recall(turn: Turn) -> None:
    """As if the upstream had given it so, but for the texts of the tool's name."""
    stitched = stitch([render(items, number) for number, items in enumerate(turn.responses)])
    last = len(turn.responses) - 1
    expected = read_events(without_echo(render(turn.shown)))
    assert read_events(stitched.data)[:-1] == expected[:-1]
    (end, wanted) = read_events(stitched.data)[-1], expected[-1]
    usage = {"input_tokens": 100 + last, "output_tokens": 10 + last, "total_tokens": 110 + 2 * last}
    assert end == wanted | {"response": wanted["response"] | {"usage": usage}}
    calls = [item["call_id"] for item in turn.shown if item["type"] == "function_call"]
    texts = [item["content"][0]["text"] for item in turn.shown if item["type"] == "message"]
    assert stitched.stitcher.reply == make_reply_mark(calls, texts)


@given(draw_turns(), st.integers(0, 1_000))
def test_it_does_not_matter_how_the_streams_are_cut(turn: Turn, seed: int) -> None:
    assert _stitch(turn, seed) == _stitch(turn)


@given(draw_turns())
def test_a_library_collects_the_items_without_recalls(turn: Turn) -> None:
    collector = ItemCollector()
    fed = [collector.feed(event) for event in parse_stream(_stitch(turn))]
    (response,) = [each for each in fed if each is not None]
    assert response.name == "resp_0"
    assert [json.loads(item) for item in response.items] == turn.shown


@given(draw_turns())
def test_each_response_but_the_last_asks_for_all_its_calls(turn: Turn) -> None:
    stitched = stitch([render(items, number) for number, items in enumerate(turn.responses)])
    for items, request in zip(turn.responses, stitched.requests, strict=True):
        calls = [item for item in items if item.get("name") == "recall_history"]
        if not calls:
            assert request is None
            continue
        assert request is not None
        assert [(each.id, each.query) for each in request.calls] == [
            (item["call_id"], json.loads(item["arguments"])["query"]) for item in calls
        ]
        bare = [{key: item[key] for key in item if key != "id"} for item in calls]
        assert json.loads(f"[{request.call}]") == bare
        assert request.is_parallel == any(item.get("name") == "look" for item in items)
        if not request.is_parallel:
            told = [bare[calls.index(item)] if item in calls else item for item in items]
            assert json.loads(f"[{request.reply}]") == told


@given(draw_turns())
def test_without_a_recall_every_byte_stays(turn: Turn) -> None:
    body = without_echo(render(turn.shown))
    stitched = stitch([body])
    assert stitched.data == body
    assert stitched.requests == [None]


@given(draw_turns())
def test_the_client_does_not_see_that_the_tool_was_offered(turn: Turn) -> None:
    body = render(turn.shown)
    assert stitch([body]).data == without_echo(body)


@requires_shared
def test_streams_of_other_kinds_pass_as_they_came() -> None:
    for response in [r for r in load_responses() if r.is_stream][:40]:
        assert stitch([response.body], seed=1).data == response.body


def test_the_client_sees_the_first_bytes_before_the_reply_has_ended() -> None:
    stitcher = ResponsesStreamStitcher()
    said = say("0", "Here.")
    body = without_echo(render([think("0", said), said, recall("r")]))
    head = body[: body.index(b'"name":"recall_history"')]
    head = head[: head.rindex(b"event: ")]
    assert stitcher.feed(head) == head
    assert stitcher.has_shown


def test_a_call_alone_shows_nothing() -> None:
    stitcher = ResponsesStreamStitcher()
    stitcher.feed(render([recall("r")]))
    assert not stitcher.has_shown


def test_a_call_that_is_not_followed_leaves_a_complete_reply() -> None:
    said = say("0", "Hm.")
    stitched = stitch([render([said, recall("r")])])
    assert b"recall_history" not in stitched.data
    assert read_events(stitched.data)[-1]["response"]["output"] == [said]
    assert read_events(stitched.data)[-1]["response"]["status"] == "completed"


def test_an_incomplete_response_is_not_followed() -> None:
    said = say("0", "Hm.")
    stitched = stitch([render([said, recall("r")], finish="length")])
    assert stitched.requests == [None]
    assert b"recall_history" not in stitched.data
    assert read_events(stitched.data)[-1]["response"]["output"] == [said]
    assert read_events(stitched.data)[-1]["type"] == "response.incomplete"


@given(st.data())
def test_a_response_that_breaks_off_shows_nothing_of_a_call(data: st.DataObject) -> None:
    body = render([say("0", "Hm."), recall("r")])
    size = data.draw(st.integers(0, len(body) - 2))
    stitched = stitch([body[:size]])
    assert b'"name":"recall_history","arguments"' not in stitched.data
    assert b"function_call_arguments" not in stitched.data
    if b"response.completed" not in body[:size]:
        assert stitched.requests == [None]


def test_arguments_that_cannot_be_read_are_a_call_without_a_query() -> None:
    for arguments in ("{", "[]", '{"query":1}', "x"):
        (request,) = stitch([render([recall("r") | {"arguments": arguments}])]).requests
        assert request is not None
        assert [(each.id, each.query) for each in request.calls] == [("r", None)]
        assert json.loads(request.call)["arguments"] == "{}"


def test_reasoning_that_only_the_upstream_knows_is_not_told_to_it_again() -> None:
    thought = think("0", recall("r"))
    del thought["encrypted_content"]
    (request,) = stitch([render([thought, recall("r")])]).requests
    assert request is not None and "reasoning" not in request.reply
    assert (request.shown, request.said) == (1, 0)


def test_an_output_that_the_upstream_leaves_empty_stays_empty() -> None:
    said = say("1", "Here.")
    follower = render([said], 1)
    at = follower.index(b'"output":[{')
    end = follower.index(b',"parallel_tool_calls"', at)
    follower = follower[:at] + b'"output":[]' + follower[end:]
    stitched = stitch([render([say("0", "Hm."), recall("r")]), follower])
    assert read_events(stitched.data)[-1]["response"]["output"] == []
    assert read_events(stitched.data)[-1]["response"]["id"] == "resp_0"


def test_a_failure_behind_a_recall_is_shown() -> None:
    failed = b'event: response.failed\ndata: {"type":"response.failed","response":{"id":"x","error":{}}}\n\n'
    stitched = stitch([render([recall("r")]), failed])
    assert read_events(stitched.data)[-1]["type"] == "response.failed"
    assert stitched.requests[1] is None


def test_parallel_calls_are_numbered_without_the_recall() -> None:
    own = call("look", "own")
    events = read_events(stitch([render([recall("r"), own])]).data)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert {event["output_index"] for event in events if "output_index" in event} == {0}
    assert events[-1]["response"]["output"] == [own]


def test_texts_that_are_cut_inside_an_emoji_are_numbered_too() -> None:
    body = render([say("1", "@@")], 1)
    halves = body.replace(b'"delta":"@@"', b'"delta":"\\ud83d"')
    stitched = stitch([render([recall("r")]), halves])
    events = [json.loads(event.data) for event in parse_stream(stitched.data)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "\ud83d" in [event.get("delta") for event in events]


@given(draw_turns(), st.data())
def test_spoiled_streams_never_raise(turn: Turn, data: st.DataObject) -> None:
    """Events are lost, repeated or exchanged, and bytes are changed."""
    bodies = [spoil(data, render(items, number)) for number, items in enumerate(turn.responses)]
    stitched = stitch(bodies)
    assert isinstance(stitched.stitcher.reply.text, str)
    for request in stitched.requests:
        assert request is None or (json.loads(f"[{request.call}]") and all(each.id for each in request.calls))


@given(st.binary(max_size=400))
def test_odd_bytes_pass_as_they_came(body: bytes) -> None:
    assert stitch([body]).data == body


@pytest.mark.parametrize(
    "event",
    [
        b'{"type":"response.created","response":7}',
        b'{"type":"response.created","response":{"tools":"recall_history"}}',
        b'{"type":"response.output_item.added","output_index":0,"item":"recall_history"}',
        b'{"type":"response.output_item.done","output_index":0,"item":{"name":"recall_history"}}',
        b'{"type":"response.output_item.done","output_index":-1,"item":[]}',
        b'{"type":"response.completed","response":{"output":"recall_history"}}',
        b'{"type":"response.completed","response":{"output":["recall_history"],"output":1}}',
        b'{"type":"response.completed"}',
        b'{"type":"error","sequence_number":"x"}',
    ],
)
def test_odd_events_pass_as_they_came(event: bytes) -> None:
    body = b"data: " + event + b"\n\n"
    stitched = stitch([body, render([recall("r")])])
    assert stitch([body]).data == body
    assert stitched.data.startswith(body) or b"completed" in event


def test_what_is_held_behind_the_end_is_bounded() -> None:
    stitcher = ResponsesStreamStitcher()
    comment = b": " + b"x" * 1_000_000 + b"\n\n"
    count = MAX_HELD_BYTES // 1_000_000
    assert comment not in stitcher.feed(render([recall("r")]) + comment * count)
    had_shown = stitcher.has_shown
    assert stitcher.feed(comment).count(comment) == count + 1
    assert (had_shown, stitcher.has_shown) == (False, True)
    assert stitcher.feed(comment) == comment
    assert stitcher.end() is None
    assert stitcher.finish() == b""
