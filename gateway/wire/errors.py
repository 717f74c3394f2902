"""Our own errors, in OpenAI's words, which Chat Completions and Responses share."""

from typing import Final

import msgspec

from gateway.core.errors import RequestRefused

_DATA: Final = b"data:"


def render_error(error: RequestRefused) -> bytes:
    """OpenAI's error object."""
    body = {"message": str(error), "type": error.kind, "param": None, "code": error.code}
    return msgspec.json.encode({"error": body})


def render_stream_error(upstream_body: bytes, status: int) -> bytes:
    """A failure after a stream was begun: the upstream's own error object as one SSE event, where it has
    one, as its body or as an event in it.
    """
    return b"data: " + msgspec.json.encode(find_error(upstream_body) or make_error(status)) + b"\n\n"


def make_error(status: int) -> dict[str, object]:
    """Where the upstream gave no error object."""
    message = f"upstream answered {status} after the stream had begun"
    return {"error": {"message": message, "type": "upstream_error", "param": None, "code": status}}


def find_error(upstream_body: bytes) -> dict[str, object] | None:
    """The object that holds the error, as the whole body or as an event in it."""
    lines = [line[len(_DATA) :] for line in upstream_body.splitlines() if line.startswith(_DATA)]
    return next(filter(None, map(_read_error, (upstream_body, *lines))), None)


def _read_error(data: bytes) -> dict[str, object] | None:
    try:
        decoded = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(decoded, dict):
        return None
    # Responses: inside the response that failed, or the event is the error itself.
    is_error = decoded.get("type") == "error" and "message" in decoded
    places: tuple[object, ...] = (decoded, decoded.get("response"), {"error": decoded} if is_error else None)
    for place in places:
        if isinstance(place, dict) and isinstance(place.get("error"), dict):
            return place
    return None
