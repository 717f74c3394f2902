"""The wire formats that the gateway understands, and which of them belongs to a path.

No other module asks which format a request has: what differs between formats is in WireFormat.
"""

import re
from typing import Final

from gateway.core.errors import RequestRefused
from gateway.wire import errors
from gateway.wire.formats.chat import CHAT
from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.responses import RESPONSES
from gateway.wire.wire_format import WireFormat

FORMATS: Final = {wire_format.name: wire_format for wire_format in (CHAT, RESPONSES, MESSAGES)}


# Clients join a base URL and a path carelessly.
_VERSIONS: Final = re.compile(r"(?:/+v1(?=[/?]|$))+")
# Requests to these paths only count tokens.
_COUNTS: Final = {"/messages/count_tokens": MESSAGES}
_BY_PATH: Final = {wire_format.path.removeprefix("/v1"): wire_format for wire_format in FORMATS.values()}
_KNOWN_PATHS: Final = frozenset({*_BY_PATH, *_COUNTS, "/models"})


def without_version(path: str) -> str:
    """Path and query after an optional leading /v1, as they go to the upstream.

    Slashes and /v1 too many at the beginning are dropped, and everywhere in a path that we know: an upstream
    would mostly refuse it, and a server that does not would answer a conversation that nobody follows.
    """
    versions = _VERSIONS.match(path)
    rest = path[versions.end() :] if versions is not None else path
    if rest.startswith("//"):
        rest = "/" + rest.lstrip("/")
    plain, mark, query = rest.partition("?")
    tidy = "/" + "/".join(filter(None, plain.split("/")))
    return tidy + mark + query if tidy in _KNOWN_PATHS else rest


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
