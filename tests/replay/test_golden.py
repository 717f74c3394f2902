"""Small recordings of every form, and the requests that they stand for.

Each folder below `golden` holds the file or the files of a recording, written for this test, and
`requests.json` with what a reader makes of them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.replay.recording import RecordedRequest
from gateway.replay.sources import find_sources, read_source

_GOLDEN = Path(__file__).parent / "golden"
_NAMES = sorted(path.name for path in _GOLDEN.iterdir() if path.is_dir())


def _describe(request: RecordedRequest) -> dict[str, Any]:
    usage = request.usage
    return {
        "path": request.path,
        "headers": [list(pair) for pair in request.headers],
        "body": json.loads(request.body),
        "usage": [usage.prompt_tokens, usage.output_tokens] if usage is not None else None,
        "reply": [json.loads(raw) for raw in request.reply],
        "has_failed": request.has_failed,
    }


@pytest.mark.parametrize("name", _NAMES)
def test_a_recording_stands_for_these_requests(name: str) -> None:
    expected = json.loads((_GOLDEN / name / "requests.json").read_text("utf-8"))
    sources = find_sources([_GOLDEN / name / "recording"]).found
    assert len(sources) == 1
    recording = read_source(sources[0], "no-model")
    found = [_describe(request) for request in recording.list_requests()]
    assert recording.kind == expected["kind"]
    assert recording.skipped == expected["skipped"]
    assert found == expected["requests"]
    assert recording.count == len(found)


def test_every_form_has_an_example() -> None:
    kinds = {json.loads((_GOLDEN / name / "requests.json").read_text("utf-8"))["kind"] for name in _NAMES}
    assert kinds == {
        *("transcript", "request log", "Claude Code session", "Codex rollout", "opencode session"),
        "gateway export",
    }
