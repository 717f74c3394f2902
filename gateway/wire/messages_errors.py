"""Errors in the words of Anthropic's API."""

from typing import Final

import msgspec

from gateway.core.errors import RequestRefused
from gateway.wire.errors import find_error

# Its clients decide by the type what to do; these are the ones they know.
_KINDS: Final = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def render_error(error: RequestRefused) -> bytes:
    detail = {"type": _KINDS.get(error.status, error.kind), "message": str(error)}
    return msgspec.json.encode({"type": "error", "error": detail})


def render_stream_error(upstream_body: bytes, status: int) -> bytes:
    """A failure after a stream was begun: the upstream's own error object as the event that clients know."""
    found = find_error(upstream_body)
    if found is None:
        message = f"upstream answered {status} after the stream had begun"
        found = {"error": {"type": _KINDS.get(status, "api_error"), "message": message}}
    return b"event: error\ndata: " + msgspec.json.encode({"type": "error"} | found) + b"\n\n"
