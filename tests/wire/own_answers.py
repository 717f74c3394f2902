"""Answers of ours, and what our own reader of answers finds in their bytes."""

import json
from collections.abc import Callable
from typing import Any

from gateway.wire.local_response import LocalResponse
from gateway.wire.response.facts import JsonObject
from gateway.wire.response.summary_reply import Said, SummaryAnswer, SummaryReader
from gateway.wire.sse import SseEvent, SseParser

TEXTS = ("Done.", 'Zeilen\n\ndata: "é" \u2028 日本語 😀 \\', "x" * 70_000)


def make_answer(text: str, *, is_streamed: bool) -> LocalResponse:
    return LocalResponse(
        id="abc", model="toy", created_seconds=1_700_000_000, text=text, is_streamed=is_streamed
    )


def read_back(data: bytes, read_said: Callable[[JsonObject], Said], *, is_streamed: bool) -> SummaryAnswer:
    reader = SummaryReader(read_said, "text/event-stream" if is_streamed else "application/json", "")
    reader.feed(data)
    return reader.read()


def read_events(data: bytes) -> list[SseEvent]:
    """Each is whole: nothing is left when the stream ends."""
    parser = SseParser()
    events = parser.feed(data)
    assert parser.finish() == []
    return events


def read_typed_events(data: bytes) -> list[dict[str, Any]]:
    """Each event is called what its value says that it is."""
    events = read_events(data)
    values = [json.loads(event.data) for event in events]
    assert [event.name for event in events] == [value["type"] for value in values]
    return values
