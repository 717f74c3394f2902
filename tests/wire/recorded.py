"""The recorded responses of `shared/data/sse`, and ways to cut them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from gateway.wire.sse import MAX_EVENT_BYTES, BlockSplitter, SseEvent, parse_event
from tests.shared_data import SHARED

_FOLDER = SHARED / "data" / "sse"
USAGE_FLAGS = {"usage_chunk_empty_choices", "usage_chunk_with_choices", "usage_repeated", "x_groq_usage"}


@dataclass(frozen=True)
class RecordedResponse:
    file: str
    flags: frozenset[str]
    content_type: str
    body: bytes

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.content_type


def load_responses() -> list[RecordedResponse]:
    manifest = json.loads((_FOLDER / "MANIFEST.json").read_text("utf-8"))
    return [
        response for entry in manifest["entries"] for response in _load_file(entry["file"], entry["flags"])
    ]


def _load_file(file: str, flags: list[str]) -> Iterator[RecordedResponse]:
    for exchange in json.loads((_FOLDER / file).read_text("utf-8"))["interactions"]:
        content_type = exchange["response_headers"]["Content-Type"][0]
        yield RecordedResponse(file, frozenset(flags), content_type, exchange["response_body"].encode())


def parse_stream(*chunks: bytes, max_event_bytes: int = MAX_EVENT_BYTES) -> list[SseEvent]:
    splitter = BlockSplitter(max_event_bytes)
    blocks = [block for chunk in chunks for block in splitter.feed(chunk)] + splitter.finish()
    return [event for event in map(parse_event, blocks) if event is not None]


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


def cut_anywhere(body: bytes, seed: int) -> list[bytes]:
    rng = Random(seed)
    places = sorted(rng.sample(range(len(body) + 1), min(len(body), 40)))
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
