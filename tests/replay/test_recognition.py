"""Which reader understands a file."""

import json

import pytest

from gateway.replay.errors import NotARecording
from gateway.replay.readers import request_log, transcript
from gateway.replay.readers.document import parse_file
from gateway.replay.recognition import find_reader
from tests.replay.samples import make_messages, make_transcript


def _encode(value: object) -> bytes:
    return json.dumps(value).encode()


def test_a_transcript_is_told_from_a_body_by_its_model() -> None:
    messages = make_messages(1)
    assert find_reader(parse_file(_encode({"messages": messages, "tools": []}))) is transcript
    assert find_reader(parse_file(_encode(make_transcript(1)))) is transcript
    assert find_reader(parse_file(_encode({"model": "m", "messages": messages}))) is request_log


def test_a_file_of_another_form_is_described_by_its_keys() -> None:
    with pytest.raises(NotARecording, match=r"a JSON object with 'name', 'version'; known are request logs"):
        find_reader(parse_file(b'{"name": "x", "version": 1}'))
    with pytest.raises(NotARecording, match="lines of JSON objects with 'level'"):
        find_reader(parse_file(b'{"level": "info"}\n{"level": "warning"}\n'))
