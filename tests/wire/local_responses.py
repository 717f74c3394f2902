"""Local responses, and readers of their bytes."""

import json
from collections.abc import Callable
from typing import Any

from gateway.wire.response.summary_reply import SummaryReader, SummaryResponse
from gateway.wire.wire_format import JsonObject, LocalResponse, ReplyPart
from tests.wire.recorded import parse_stream

TEXTS = ("Done.", 'Zeilen\n\ndata: "é" \u2028 日本語 😀 \\', "x" * 70_000)


def make_response(text: str, *, is_streamed: bool) -> LocalResponse:
    return LocalResponse(
        id="abc", model="toy", created_seconds=1_700_000_000, text=text, is_streamed=is_streamed
    )


def read_back(
    data: bytes, find_reply_part: Callable[[JsonObject], ReplyPart], *, is_streamed: bool
) -> SummaryResponse:
    reader = SummaryReader(find_reply_part, "text/event-stream" if is_streamed else "application/json", "")
    reader.feed(data)
    return reader.finish()


def parse_typed_events(data: bytes) -> list[dict[str, Any]]:
    """The values of a stream whose events are each named after the type of their value."""
    assert data.endswith(b"\n\n")
    events = parse_stream(data)
    values = [json.loads(event.data) for event in events]
    assert [event.name for event in events] == [value["type"] for value in values]
    return values
