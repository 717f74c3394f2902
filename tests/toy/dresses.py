"""The shapes in which a toy may refuse a request that is too long."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.toy.chat import CHAT
from tests.toy.delivery import RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.messages import MESSAGES
from tests.toy.reply import render_named
from tests.toy.responses import RESPONSES
from tests.toy.upstream import Seen, ToyUpstream

_JSON: Final = (("Content-Type", "application/json"),)
_TEXT: Final = (("Content-Type", "text/plain"),)
_SSE: Final = (("Content-Type", "text/event-stream"),)

Render = Callable[[str, bool], RawAnswer]


def _object(status: int, value: object) -> RawAnswer:
    return RawAnswer(status=status, headers=_JSON, pieces=(json.dumps(value).encode(),))


def _event(value: object, *before: bytes) -> RawAnswer:
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    return RawAnswer(status=200, headers=_SSE, pieces=(*before, data), length=False)


def _error(text: str, code: str | None = None) -> dict[str, object]:
    return {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": code}}


def _first_chunk() -> bytes:
    chunk = {
        "id": "a",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"role": "assistant"}}],
    }
    return b": ping\n\ndata: " + json.dumps(chunk).encode() + b"\n\n"


def _finished(stream: bool) -> RawAnswer:
    reason = "model_context_window_exceeded"
    if stream:
        chunk = {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
        }
        return _event(chunk, _first_chunk())
    message = {"role": "assistant", "content": ""}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return _object(200, {"object": "chat.completion", "choices": [choice]})


def _named_events(*values: Mapping[str, object]) -> RawAnswer:
    """Events that carry their type as their name, as Responses and Messages have them."""
    return RawAnswer(status=200, headers=_SSE, pieces=tuple(map(render_named, values)), length=False)


def _response(status: str, text: str | None) -> dict[str, object]:
    error = None if text is None else {"code": "context_length_exceeded", "message": text}
    return {"id": "resp_1", "object": "response", "status": status, "error": error, "output": []}


def _failed(text: str, stream: bool) -> RawAnswer:
    failed = _response("failed", text)
    if not stream:
        return _object(200, failed)
    created: dict[str, object] = {"type": "response.created", "response": _response("in_progress", None)}
    return _named_events(created, {"type": "response.failed", "response": failed})


def _anthropic(text: str, kind: str = "invalid_request_error") -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"}


def _message(stop: str | None) -> dict[str, object]:
    head: dict[str, object] = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    return head | {"stop_reason": stop, "usage": {"input_tokens": 1, "output_tokens": 1}}


def _stopped(stream: bool) -> RawAnswer:
    reason = "model_context_window_exceeded"
    if not stream:
        return _object(200, _message(reason))
    delta = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}}
    return _named_events(
        {"type": "message_start", "message": _message(None)}, delta, {"type": "message_stop"}
    )


@dataclass(frozen=True)
class Dress:
    """streamed: this shape exists in streams only; other requests get the toy's usual refusal."""

    render: Render
    dialect: Dialect = CHAT
    streamed: bool = False


_CHAT: Final = {
    "openai 400": Dress(lambda text, _: _object(400, _error(text, "context_length_exceeded"))),
    "code alone": Dress(lambda _, __: _object(400, _error("Bad request.", "context_length_exceeded"))),
    "anthropic 413": Dress(
        lambda text, _: _object(
            413, {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
        )
    ),
    "detail": Dress(lambda text, _: _object(422, {"detail": text})),
    "plain text": Dress(lambda text, _: RawAnswer(status=400, headers=_TEXT, pieces=(text.encode(),))),
    "no body 400": Dress(lambda _, __: RawAnswer(status=400, headers=(), pieces=())),
    "no body 413": Dress(lambda _, __: RawAnswer(status=413, headers=(), pieces=())),
    "200 with an error": Dress(lambda text, _: _object(200, _error(text, "context_length_exceeded"))),
    "finish reason": Dress(lambda _, stream: _finished(stream)),
    "first event": Dress(lambda text, _: _event(_error(text, "context_length_exceeded")), streamed=True),
    "after the role": Dress(
        lambda text, _: _event(_error(text, "context_length_exceeded"), _first_chunk()), streamed=True
    ),
}
_RESPONSES: Final = {
    "responses 400": Dress(lambda text, _: _object(400, _error(text, "context_length_exceeded")), RESPONSES),
    "responses failed": Dress(_failed, RESPONSES),
    "responses error event": Dress(
        lambda text, _: _named_events({"type": "error", "code": "context_length_exceeded", "message": text}),
        RESPONSES,
        streamed=True,
    ),
    "responses nested error event": Dress(
        lambda text, _: _named_events(
            {"type": "response.created", "response": _response("in_progress", None)},
            {"type": "error", **_error(text, "context_length_exceeded")},
        ),
        RESPONSES,
        streamed=True,
    ),
}
_MESSAGES: Final = {
    "messages 400": Dress(lambda text, _: _object(400, _anthropic(text)), MESSAGES),
    "messages 413": Dress(lambda text, _: _object(413, _anthropic(text, "request_too_large")), MESSAGES),
    "messages stop reason": Dress(lambda _, stream: _stopped(stream), MESSAGES),
    "messages of Bedrock": Dress(
        lambda _, __: _object(400, {"message": "Input is too long for requested model."}), MESSAGES
    ),
    "messages error event": Dress(lambda text, _: _named_events(_anthropic(text)), MESSAGES, streamed=True),
    "messages error after its start": Dress(
        lambda text, _: _named_events(
            {"type": "message_start", "message": _message(None)}, {"type": "ping"}, _anthropic(text)
        ),
        MESSAGES,
        streamed=True,
    ),
}
DRESSES: Final = _CHAT | _RESPONSES | _MESSAGES
# Phrases of a strict upstream about length, in all formats.
_WORDS: Final = ("maximum context length", "context window", "prompt is too long", "exceed context limit")


def is_for_length(seen: Seen) -> bool:
    return seen.refusal is not None and any(words in seen.refusal for words in _WORDS)


def dress_refusals(toy: ToyUpstream, name: str) -> None:
    """From now on the toy refuses requests that exceed its window in this shape."""
    dress = DRESSES[name]

    def intercept(seen: Seen) -> RawAnswer | None:
        is_streamed = bool(seen.request.get("stream"))
        if not is_for_length(seen) or (dress.streamed and not is_streamed):
            return None
        return dress.render(str(seen.refusal), is_streamed)

    toy.intercept = intercept
