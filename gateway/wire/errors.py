"""Our own errors in OpenAI's shape, which Chat Completions and Responses share."""

from typing import Final

import msgspec

from gateway.core.errors import RequestRefused
from gateway.wire.body import JSON_ERRORS

_DATA: Final = b"data:"


def render_error(error: RequestRefused) -> bytes:
    body = {"message": str(error), "type": error.kind, "param": None, "code": error.code}
    return msgspec.json.encode({"error": body})


def render_stream_error(upstream_body: bytes, status: int) -> bytes:
    """An upstream's error as one event of a stream that has begun: its own error object if it has one."""
    return b"data: " + msgspec.json.encode(parse_error(upstream_body) or make_error(status)) + b"\n\n"


def make_error(status: int) -> dict[str, object]:
    """For an upstream that gave no error object."""
    error = {"message": describe_failure(status), "type": "upstream_error", "param": None, "code": status}
    return {"error": error}


def describe_failure(status: int) -> str:
    return f"upstream answered {status} after the stream had begun"


def parse_error(upstream_body: bytes) -> dict[str, object] | None:
    """The object that holds the error: the whole body, or one of the events in it."""
    lines = [line[len(_DATA) :] for line in upstream_body.splitlines() if line.startswith(_DATA)]
    return next(filter(None, map(_parse_error, (upstream_body, *lines))), None)


def _parse_error(data: bytes) -> dict[str, object] | None:
    try:
        decoded = msgspec.json.decode(data)
    except JSON_ERRORS:
        return None
    if not isinstance(decoded, dict):
        return None
    # In Responses the error is inside the failed response, or the event itself is the error.
    is_error = decoded.get("type") == "error" and "message" in decoded
    places: tuple[object, ...] = (decoded, decoded.get("response"), {"error": decoded} if is_error else None)
    for place in places:
        if isinstance(place, dict) and isinstance(place.get("error"), dict):
            return place
    return None
