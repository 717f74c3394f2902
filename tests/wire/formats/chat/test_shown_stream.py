import json
from typing import Any

import pytest

from gateway.wire.formats.chat.call_tracker import CallTracker
from gateway.wire.formats.chat.chunk import Chunk, parse_chunk
from gateway.wire.formats.chat.shown_stream import ShownStream
from gateway.wire.recall import RECALL_TOOL
from gateway.wire.response.raw_events import RawEvent
from gateway.wire.sse import SseEvent

_READ = {"index": 0, "id": "a", "function": {"name": "read", "arguments": "{}"}}
_RECALL = {"index": 0, "id": "r", "function": {"name": RECALL_TOOL, "arguments": "{}"}}


def make_chunk(
    delta: Any, reason: str | None = None, tracker: CallTracker | None = None, **head: Any
) -> Chunk:
    data = json.dumps({**head, "choices": [{"delta": delta, "finish_reason": reason}]}).encode()
    chunk = parse_chunk(RawEvent(b"data: " + data + b"\n\n", SseEvent("message", data)))
    assert chunk is not None
    tracker = tracker or CallTracker()
    chunk.calls = [tracker.add(piece) for piece in chunk.pieces]
    tracker.place()
    return chunk


def read_delta(event: bytes) -> Any:
    return json.loads(event.removeprefix(b"data: "))["choices"][0]["delta"]


def test_the_first_response_keeps_its_bytes() -> None:
    shown = ShownStream()
    for delta in ({"role": "assistant"}, {"role": "assistant", "content": "a"}, {"tool_calls": [_READ]}, {}):
        chunk = make_chunk(delta, id="c")
        assert shown.render(chunk) == chunk.raw


@pytest.mark.parametrize(
    ("delta", "is_content"),
    [
        ({"role": "assistant", "content": ""}, False),
        ({"content": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"tool_calls": [_READ]}, True),
        ({"tool_calls": [_RECALL]}, False),
    ],
)
def test_what_a_client_sees_as_content(delta: Any, is_content: bool) -> None:
    shown = ShownStream()
    shown.render(make_chunk(delta))
    assert shown.has_content is is_content


def test_own_calls_are_left_out_and_what_else_is_in_the_chunk_stays() -> None:
    shown, tracker = ShownStream(), CallTracker()
    second = {**_READ, "index": 1, "custom_field": 1}
    assert shown.render(make_chunk({"tool_calls": [_RECALL]}, tracker=tracker)) == b""
    event = shown.render(make_chunk({"content": "a", "tool_calls": [_RECALL, second]}, tracker=tracker))
    assert read_delta(event) == {"content": "a", "tool_calls": [{**second, "index": 0}]}
    assert tracker.calls[1].is_shown
    assert not tracker.calls[0].is_shown


def test_the_role_is_shown_even_if_nothing_else_is_left() -> None:
    shown, tracker = ShownStream(), CallTracker()
    chunk = make_chunk({"role": "assistant", "content": None, "tool_calls": [_RECALL]}, tracker=tracker)
    assert read_delta(shown.render(chunk)) == {"role": "assistant", "content": None}
    assert shown.render(make_chunk({"role": "assistant", "tool_calls": [_RECALL]}, tracker=tracker)) == b""


def test_later_responses_go_on_with_the_first() -> None:
    shown = ShownStream()
    shown.render(make_chunk({}, id="", created=0))
    shown.render(make_chunk({"role": "assistant", "content": "One."}, id="first", created=1))
    shown.render(make_chunk({"tool_calls": [_READ]}, id="odd", created=2))
    shown.begin_next(1)
    assert shown.render(make_chunk({"role": "assistant", "content": ""}, id="second")) == b""
    event = shown.render(
        make_chunk({"role": "assistant", "content": "Two."}, id="second", other="x", created=9)
    )
    assert json.loads(event.removeprefix(b"data: ")) == {
        "id": "first",
        "other": "x",
        "created": 1,
        "choices": [{"delta": {"content": "\n\nTwo."}, "finish_reason": None}],
    }
    event = shown.render(make_chunk({"content": " Three.", "tool_calls": [_READ]}))
    assert read_delta(event) == {"content": " Three.", "tool_calls": [{**_READ, "index": 1}]}
    end = shown.render(make_chunk({"role": "assistant"}, "stop"))
    assert json.loads(end.removeprefix(b"data: "))["choices"][0] == {"delta": {}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a", "b", "\n\nb"),
        ("a\n", "b", "b"),
        ("a", " b", " b"),
        ("", "b", "b"),
        ("a", '"é', '\n\n"é'),
    ],
)
def test_texts_of_two_responses_stand_in_two_paragraphs(first: str, second: str, expected: str) -> None:
    shown = ShownStream()
    shown.render(make_chunk({"content": first}))
    shown.begin_next(0)
    assert read_delta(shown.render(make_chunk({"content": second}))) == {"content": expected}
    assert read_delta(shown.render(make_chunk({"content": "c"}))) == {"content": "c"}


def test_the_finish_reason_can_be_another() -> None:
    event = ShownStream().render(make_chunk({}, "tool_calls"), b'"stop"')
    assert json.loads(event.removeprefix(b"data: "))["choices"][0]["finish_reason"] == "stop"
