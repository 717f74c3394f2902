"""Our own errors, in the words of the client's wire format."""

import msgspec

from gateway.core.errors import RequestRefused


def render_error(path: str, error: RequestRefused) -> bytes:
    """OpenAI's error object; Anthropic's where the path is one of theirs."""
    if path.startswith(("/v1/messages", "/messages")):
        detail = {"type": error.kind, "message": str(error)}
        return msgspec.json.encode({"type": "error", "error": detail})
    body = {"message": str(error), "type": error.kind, "param": None, "code": error.code}
    return msgspec.json.encode({"error": body})


def render_stream_error(upstream_body: bytes, status: int) -> bytes:
    """A failure after a stream was begun: the upstream's own error object as one SSE event, where it has
    one.
    """
    try:
        decoded = msgspec.json.decode(upstream_body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        decoded = None
    if not (isinstance(decoded, dict) and isinstance(decoded.get("error"), dict)):
        message = f"upstream answered {status} after the stream had begun"
        decoded = {"error": {"message": message, "type": "upstream_error", "param": None, "code": status}}
    return b"data: " + msgspec.json.encode(decoded) + b"\n\n"
