"""Recorded traffic of `shared/data`: responses, JSON documents, and ways to cut a body.

Tests over it are skipped with their number of cases if it is absent.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import pytest

from tests.shared_data import SHARED

RECORDINGS = 111
JSON_CASES = 340
CAPTURES = 154
_MOST_CUTS = 40


def requires_cases(count: int, what: str) -> pytest.MarkDecorator:
    reason = f"{count} {what} skipped: put `shared` beside the repository or name it in GATEWAY_SHARED"
    return pytest.mark.skipif(not (SHARED / "data").is_dir(), reason=reason)


@dataclass(frozen=True)
class RecordedResponse:
    file: str
    content_type: str
    body: bytes

    @property
    def is_stream(self) -> bool:
        return "event-stream" in self.content_type


def load_responses() -> list[RecordedResponse]:
    manifest = json.loads((SHARED / "data" / "sse" / "MANIFEST.json").read_text("utf-8"))
    return [response for entry in manifest["entries"] for response in _load_file(entry["file"])]


def _load_file(file: str) -> Iterator[RecordedResponse]:
    document = json.loads((SHARED / "data" / "sse" / file).read_text("utf-8"))
    for exchange in document["interactions"]:
        content_type = exchange["response_headers"]["Content-Type"][0]
        yield RecordedResponse(file, content_type, exchange["response_body"].encode())


def load_json_cases() -> list[tuple[str, bytes]]:
    document = json.loads((SHARED / "data" / "jsontestsuite.json").read_text("utf-8"))
    return [(case["name"], base64.b64decode(case["b64"])) for case in document["cases"]]


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


def cut_anywhere(body: bytes, seed: int) -> list[bytes]:
    places = sorted(Random(seed).sample(range(len(body) + 1), min(len(body), _MOST_CUTS)))
    return [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]
