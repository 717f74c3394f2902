import json
from pathlib import Path

import pytest

from gateway.conversations.recognizer import Recognizer
from gateway.core.errors import RequestRefused
from gateway.core.history.cleared_results import chain_frames
from gateway.core.history.message import hash_beginning
from gateway.wire.formats.registry import (
    FORMATS,
    find_counted_format,
    find_format,
    guess_format,
    render_error,
    without_version,
)
from gateway.wire.wire_format import WireFormat, parse_split_fingerprint

_FINGERPRINTS = Path(__file__).parent / "fingerprints"
_PATHS = [
    ("/v1/chat/completions", "chat"),
    ("/chat/completions", "chat"),
    ("/v1/chat/completions?api-version=1", "chat"),
    ("/v1/responses", "responses"),
    ("/v1/responses/compact", None),
    ("/v1/responses/resp_1", None),
    ("/v1/messages?beta=true", "messages"),
    ("/v1/messages/count_tokens", None),
    ("/v1/chat/completions/", "chat"),
    ("/v1/v1/chat/completions", "chat"),
    ("//chat/completions?x=1", "chat"),
    ("/v1//chat//completions", "chat"),
    ("//v1/v1//messages", "messages"),
    ("/v1/v1", None),
    ("/v1x/chat/completions", None),
    ("/x/v1/chat/completions", None),
    ("/v2/chat/completions", None),
    ("/v1", None),
    ("/", None),
    ("", None),
]


@pytest.mark.parametrize(("path", "expected"), _PATHS)
def test_a_format_is_found_by_its_path(path: str, expected: str | None) -> None:
    wire_format = find_format(path)
    assert wire_format is FORMATS.get(expected or "")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", "/chat/completions"),
        ("//v1//v1/chat/completions/?a=//b/v1/", "/chat/completions?a=//b/v1/"),
        ("/v1/v1/models", "/models"),
        ("//embeddings", "/embeddings"),
        ("/v1//files/x//y/", "//files/x//y/"),
        ("//v1/x", "//v1/x"),
        ("/v1/v1/x", "/v1/x"),
        ("/proxy/http://x/v1/y", "/proxy/http://x/v1/y"),
        ("/v1/v10/x", "/v10/x"),
        ("/v1/", "/"),
        ("/v1?a", "?a"),
        ("//", "//"),
        ("", ""),
    ],
)
def test_slashes_and_versions_too_many_are_dropped_in_known_paths_only(path: str, expected: str) -> None:
    assert without_version(path) == expected


@pytest.mark.parametrize("wire_format", FORMATS.values(), ids=FORMATS)
def test_a_format_is_found_at_its_own_path(wire_format: object) -> None:
    assert [find_format(known.path) for known in FORMATS.values() if known is wire_format] == [wire_format]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/v1/messages/count_tokens", "messages"), ("/v1/responses/compact", "responses"), ("/v1/models", None)],
)
def test_the_start_of_a_path_tells_its_api(path: str, expected: str | None) -> None:
    assert guess_format(path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/messages/count_tokens", "messages"),
        ("/messages/count_tokens?beta=true", "messages"),
        ("/v1/messages", None),
        ("/v1/chat/completions/count_tokens", None),
        ("/count_tokens", None),
    ],
)
def test_a_request_for_a_token_count_is_found_by_its_path(path: str, expected: str | None) -> None:
    assert find_counted_format(path) is FORMATS.get(expected or "")


@pytest.mark.parametrize("wire_format", FORMATS.values(), ids=FORMATS)
def test_fingerprints_stay_what_they_were_when_they_were_stored(wire_format: WireFormat) -> None:
    """State on disk is found by these values: if one of them changes, stored conversations are lost."""
    body = (_FINGERPRINTS / f"{wire_format.name}.request.json").read_bytes()
    expected = json.loads((_FINGERPRINTS / f"{wire_format.name}.expected.json").read_text("utf-8"))
    received = Recognizer(1 << 20, 1 << 20, 8).recognize("tenant", wire_format, body)
    conversation, envelope = received.conversation, received.body.envelope
    assert [message.fingerprint.hex() for message in conversation.leading] == expected["leading"]
    assert [link.hex() for link in conversation.chain] == expected["chain"]
    assert envelope.tools.hex() == expected["tools"]
    assert envelope.system.hex() == expected["system"]
    messages = enumerate(conversation.messages)
    found = [parse_split_fingerprint(wire_format, message, received.raw(at)) for at, message in messages]
    hashes = [message for message in found if message is not None]
    assert len(hashes) == len(found)
    assert [result.hex() for message in hashes for result in message.results] == expected["results"]
    assert [link.hex() for link in chain_frames(conversation, hashes)] == expected["result_chain"]


_REFUSED = RequestRefused(413, 'Too "large".', code="request_too_large")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/anything"])
def test_an_error_is_an_openai_object(path: str) -> None:
    assert json.loads(render_error(path, _REFUSED)) == {
        "error": {
            "message": 'Too "large".',
            "type": "invalid_request_error",
            "param": None,
            "code": "request_too_large",
        }
    }


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages/count_tokens"])
def test_an_error_on_anthropics_paths_is_an_anthropic_object(path: str) -> None:
    assert json.loads(render_error(path, _REFUSED)) == {
        "type": "error",
        "error": {"type": "request_too_large", "message": 'Too "large".'},
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chat", {"role": "user", "content": "So it begins."}),
        (
            "chat",
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "So it begins."}]},
        ),
        ("messages", {"role": "assistant", "content": [{"type": "text", "text": "So it begins."}]}),
        (
            "messages",
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "So it begins."}],
            },
        ),
        ("responses", {"role": "user", "content": "So it begins."}),
        ("responses", {"type": "function_call_output", "call_id": "a", "output": "So it begins."}),
    ],
)
def test_a_message_is_known_by_how_it_begins(name: str, message: dict[str, object]) -> None:
    assert FORMATS[name].parse_message(json.dumps(message).encode(), b"").beginning == hash_beginning(
        "So it begins."
    )
