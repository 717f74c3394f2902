"""Responses: a summary that rides on the conversation's own request."""

from typing import Final

from gateway.wire.formats.responses.items import find_answered, kind_of, role_of
from gateway.wire.riding import RiddenBody, RidingRequest, read_ridden, ride_or_none, spare_tokens

# A history that the upstream holds or shortens, a response that comes later, and a prompt that is stored
# there, which may have tools of its own.
_IN_THE_WAY: Final = ("background", "conversation", "previous_response_id", "context_management", "prompt")
_LIMITS: Final = ("max_output_tokens",)


@ride_or_none
def ride(data: bytes, request: RidingRequest) -> bytes | None:
    """Not for an input that is a text, structured output, or a history that the request only names."""
    body = read_ridden(data, "input")
    if body is None or body.has(*_IN_THE_WAY) or body.parse("truncation") not in (None, "disabled"):
        return None
    if not _is_text(body.parse("text")) or not _may_follow(body):
        return None
    least = request.cap_tokens + spare_tokens(request)
    if not body.limit_reply(_LIMITS, least, request.room_tokens):
        return None
    part = {"type": "input_text", "text": request.message}
    body.append({"type": "message", "role": "user", "content": [part]})
    if body.has("tools"):
        body.set("tool_choice", "none")
    if body.parse("store") is not False:
        body.set("store", False)
    return body.render()


def _is_text(text: object) -> bool:
    output = text.get("format") if isinstance(text, dict) else None
    return output is None or (isinstance(output, dict) and output.get("type") == "text")


def _may_follow(body: RiddenBody) -> bool:
    """Behind a call without its result, or a thought without what it led to, nothing may stand."""
    last = body.parse_last()
    if not isinstance(last, dict) or not kind_of(last):
        return False
    return role_of(last) in ("user", "system") or find_answered(last) is not None
