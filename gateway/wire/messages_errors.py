"""Errors in the words of Anthropic's API."""

from typing import Final

import msgspec

from gateway.core.errors import RequestRefused

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
