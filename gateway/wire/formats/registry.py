"""The wire formats that the gateway understands, and which of them belongs to a path.

No other module asks which format a request has: what differs between formats is in WireFormat.
"""

from typing import Final

from gateway.core.errors import RequestRefused
from gateway.wire import errors
from gateway.wire.formats.chat import CHAT
from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.responses import RESPONSES
from gateway.wire.wire_format import WireFormat

FORMATS: Final = {wire_format.name: wire_format for wire_format in (CHAT, RESPONSES, MESSAGES)}


def without_version(path: str) -> str:
    """The path after an optional leading /v1."""
    if path.startswith("/v1/"):
        return path[3:]
    return path[3:] if path.startswith("/v1") and path[3:4] in ("", "?") else path


_BY_PATH: Final = {without_version(wire_format.path): wire_format for wire_format in FORMATS.values()}
# Requests to these paths only count tokens.
_COUNTS: Final = {"/messages/count_tokens": MESSAGES}


def find_format(path: str) -> WireFormat | None:
    """The format of requests posted to this path, None if they are only relayed."""
    return _BY_PATH.get(without_version(path.partition("?")[0]))


def find_counted_format(path: str) -> WireFormat | None:
    """The format of requests posted to this path to count their tokens."""
    return _COUNTS.get(without_version(path.partition("?")[0]))


def guess_format(path: str) -> str | None:
    """The name of the API that a path belongs to: `/messages/count_tokens` belongs to `messages`."""
    wire_format = _guess(path)
    return wire_format.name if wire_format is not None else None


def render_error(path: str, error: RequestRefused) -> bytes:
    """One of our errors, as the clients of this path expect errors."""
    wire_format = _guess(path)
    return wire_format.render_error(error) if wire_format is not None else errors.render_error(error)


def _guess(path: str) -> WireFormat | None:
    plain = without_version(path)
    return next((wire_format for prefix, wire_format in _BY_PATH.items() if plain.startswith(prefix)), None)
