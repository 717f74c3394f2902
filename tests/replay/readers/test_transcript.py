"""Transcripts with messages."""

import json
from typing import Any

from gateway.replay.readers import transcript
from gateway.replay.readers.document import parse_file
from gateway.replay.readers.transcript import find_cuts
from gateway.replay.recording import RecordedRequest
from tests.replay.samples import make_messages


def _read(**value: Any) -> list[RecordedRequest]:
    return [*transcript.read(parse_file(json.dumps(value).encode()), "fallback").list_requests()]


def test_requests_are_cut_before_each_reply() -> None:
    assert find_cuts(["system", "user", "assistant", "tool", "tool", "assistant"]) == [2, 5]
    assert find_cuts(["user", "assistant", "assistant", "user"]) == [1, 4]
    assert find_cuts(["assistant", "user", "assistant"]) == [2]
    assert find_cuts([]) == []


def test_each_request_holds_what_came_before_it_and_knows_its_reply() -> None:
    messages = make_messages(2)
    requests = _read(messages=messages, tools=[{"type": "function"}])
    bodies = [json.loads(request.body) for request in requests]
    assert [len(body["messages"]) for body in bodies] == [1, 3, 5]
    assert bodies[2] == {"model": "fallback", "tools": [{"type": "function"}], "messages": messages}
    assert json.loads(requests[0].reply[0]) == messages[1]
    assert requests[2].reply == ()


def test_usage_stands_at_the_reply_and_its_output_is_counted_anew() -> None:
    steps = [{"i": 3, "prompt_tokens": 900, "cached_tokens": 5, "completion_tokens": 1}, {"i": 99}, "?"]
    requests = _read(messages=make_messages(2), usage_by_assistant=steps)
    usages = [request.usage for request in requests]
    assert usages[0] is None
    assert usages[1] is not None
    assert (usages[1].prompt_tokens, usages[1].output_tokens) == (900, None)


def test_a_response_to_the_last_message_gives_its_usage_and_the_model() -> None:
    response = {"model": "answered-by", "usage": {"prompt_tokens": 70, "completion_tokens": 8}}
    requests = _read(messages=make_messages(1), response=response)
    assert requests[-1].usage is not None
    assert (requests[-1].usage.prompt_tokens, requests[-1].usage.output_tokens) == (70, 8)
    assert json.loads(requests[0].body)["model"] == "answered-by"
    assert requests[0].usage is None


def test_what_is_no_message_is_skipped_and_counted() -> None:
    document = parse_file(json.dumps({"messages": [{"role": "user", "content": "a"}, 3, {}]}).encode())
    recording = transcript.read(document, "m")
    assert (recording.count, recording.skipped) == (1, 2)
