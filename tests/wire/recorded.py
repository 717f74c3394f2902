"""Responses, recorded and made by the toy, and ways to cut them, pack them and spoil them."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from random import Random

import brotli
import zstandard
from hypothesis import strategies as st

from gateway.wire.reader import ResponseEvents
from gateway.wire.sse import EventSplitter, SseEvent
from tests.shared_data import SHARED

USAGE_FLAGS = {"usage_chunk_empty_choices", "usage_chunk_with_choices", "usage_repeated", "x_groq_usage"}
# One of a provider that sends comments, reasoning, calls in parallel, and usage beside choices; and a body.
SOME_FILES = (
    "TestOpenRouterCommon-grok-multi-tool-streaming.json",
    "TestOpenAICommon-openai-gpt-4o-mini-simple-streaming.json",
    "TestOpenRouterCommon-glm-tool.json",
)
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": partial(brotli.compress, quality=5),
    "zstd": zstandard.compress,
}


@dataclass(frozen=True)
class RecordedResponse:
    """Of an upstream that speaks Chat Completions: the others are the toy's."""

    file: str
    flags: frozenset[str]
    content_type: str
    body: bytes

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.content_type


@cache
def load_responses() -> tuple[RecordedResponse, ...]:
    """All of them. Only for a test that `requires_shared`."""
    folder = SHARED / "data" / "sse"
    manifest = json.loads((folder / "MANIFEST.json").read_text("utf-8"))
    return tuple(
        found for entry in manifest["entries"] for found in _load_file(entry["file"], entry["flags"])
    )


def _load_file(file: str, flags: list[str]) -> Iterator[RecordedResponse]:
    path = SHARED / "data" / "sse" / file
    for exchange in json.loads(path.read_text("utf-8"))["interactions"]:
        content_type = exchange["response_headers"]["Content-Type"][0]
        yield RecordedResponse(file, frozenset(flags), content_type, exchange["response_body"].encode())


def load_some_responses() -> list[RecordedResponse]:
    return [response for response in load_responses() if response.file in SOME_FILES]


def parse_stream(*chunks: bytes) -> list[SseEvent]:
    events, found = ResponseEvents("text/event-stream", ""), list[SseEvent]()
    for chunk in chunks:
        found += events.feed(chunk)
        while events.is_behind:
            found += events.catch_up()
    return found + events.finish()


def split(*chunks: bytes, max_event_bytes: int) -> list[SseEvent]:
    splitter = EventSplitter(max_event_bytes)
    return [found for chunk in chunks for found in splitter.feed(chunk)] + splitter.finish()


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


def cut_anywhere(body: bytes, seed: int) -> list[bytes]:
    rng = Random(seed)
    places = sorted(rng.sample(range(len(body) + 1), min(len(body), 40)))
    return [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]


def draw_cuts(data: st.DataObject, body: bytes) -> list[bytes]:
    places = sorted(data.draw(st.lists(st.integers(0, len(body)))))
    return [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]


def spoil(data: st.DataObject, stream: bytes) -> bytes:
    """A stream with events that are lost, repeated or exchanged, and with changed bytes."""
    events = stream.split(b"\n\n")
    for _ in range(data.draw(st.integers(1, 3))):
        at, other = (data.draw(st.integers(0, len(events) - 1)) for _ in range(2))
        match data.draw(st.sampled_from(["lost", "repeated", "exchanged", "changed"])):
            case "lost" if len(events) > 1:
                del events[at]
            case "repeated":
                events.insert(other, events[at])
            case "exchanged":
                events[at], events[other] = events[other], events[at]
            case _:
                place = data.draw(st.integers(0, len(events[at])))
                new = data.draw(st.sampled_from([b"null", b"[", b'"', b"\xff", b"-1", b"\n", b""]))
                events[at] = events[at][:place] + new + events[at][place + 2 :]
    return b"\n\n".join(events)
