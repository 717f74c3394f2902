"""How a refusal may look on the wire, for a toy that refuses what is too long."""

import json
from collections.abc import Callable
from typing import Final

from tests.toy.delivery import RawAnswer
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


_RENDER: Final[dict[str, Render]] = {
    "openai 400": lambda text, _: _object(400, _error(text, "context_length_exceeded")),
    "code alone": lambda _, __: _object(400, _error("Bad request.", "context_length_exceeded")),
    "anthropic 413": lambda text, _: _object(
        413, {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
    ),
    "detail": lambda text, _: _object(422, {"detail": text}),
    "plain text": lambda text, _: RawAnswer(
        status=400, headers=(("Content-Type", "text/plain"),), pieces=(text.encode(),)
    ),
    "no body 400": lambda _, __: RawAnswer(status=400, headers=(), pieces=()),
    "no body 413": lambda _, __: RawAnswer(status=413, headers=(), pieces=()),
    "200 with an error": lambda text, _: _object(200, _error(text, "context_length_exceeded")),
    "finish reason": lambda _, stream: _finished(stream),
}
_STREAMED: Final[dict[str, Render]] = {
    "first event": lambda text, _: _event(_error(text, "context_length_exceeded")),
    "after the role": lambda text, _: _event(_error(text, "context_length_exceeded"), _first_chunk()),
}
DRESSES: Final = [*_RENDER, *_STREAMED]


def dress_refusals(toy: ToyUpstream, dress: str) -> None:
    """From now on the toy refuses what is too long for its window in this dress."""
    render = (_RENDER | _STREAMED)[dress]

    def intercept(seen: Seen) -> RawAnswer | None:
        if seen.refusal is None or "maximum context length" not in seen.refusal:
            return None
        is_streamed = bool(seen.request.get("stream"))
        if dress in _STREAMED and not is_streamed:
            return None
        return render(seen.refusal, is_streamed)

    toy.intercept = intercept
