"""Responses: a failure after a stream was begun, as one event."""

import msgspec

from gateway.wire.errors import find_error, make_error

# Of Responses' error codes the one that says least.
_CODE = "server_error"


def render_stream_error(upstream_body: bytes, status: int) -> bytes:
    """`response.failed`, which Codex and the AI SDK read; OpenAI's own libraries raise for its `error`."""
    error = (find_error(upstream_body) or make_error(status))["error"]
    detail = error if isinstance(error, dict) else {}
    codes = [code for key in ("code", "type") if isinstance(code := detail.get(key), str) and code]
    told = {"code": codes[0] if codes else _CODE, "message": str(detail.get("message") or "")}
    response = {"object": "response", "status": "failed", "output": [], "error": told}
    event = {"type": "response.failed", "sequence_number": 0, "response": response, "error": detail}
    return b"event: response.failed\ndata: " + msgspec.json.encode(event) + b"\n\n"
