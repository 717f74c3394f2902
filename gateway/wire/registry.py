"""The wire formats that the gateway understands, and which of them belongs to a path.

No other module asks which format a request has: what differs between formats is in Format.
"""

from itertools import dropwhile
from typing import Final

from gateway.core.errors import RequestRefused
from gateway.wire.chat import Chat
from gateway.wire.format import Format, render_openai_error
from gateway.wire.messages import Messages
from gateway.wire.references import StoredHistory
from gateway.wire.responses import Responses

CHAT: Final = Chat()
RESPONSES: Final = Responses()
MESSAGES: Final = Messages()
FORMATS: Final[dict[str, Format]] = {
    wire_format.name: wire_format for wire_format in (CHAT, RESPONSES, MESSAGES)
}

# Requests to these paths only count tokens.
_COUNTS: Final = {"/messages/count_tokens": MESSAGES}
_VERSION: Final = "v1"
_BY_PATH: Final = {wire_format.path.removeprefix("/v1"): wire_format for wire_format in FORMATS.values()}
# Paths that clients join with a base URL.
_KNOWN_PATHS: Final = frozenset({*_BY_PATH, *_COUNTS, "/models", "/embeddings", "/completions"})


def without_version(path: str) -> str:
    """Path and query after an optional leading /v1, as they go to the upstream.

    In a path that we know, slashes and /v1 too many are dropped. Clients join URLs carelessly. An upstream
    that does not mind would answer a conversation that the gateway does not follow. Other paths stay as they
    came.
    """
    plain, mark, query = path.partition("?")
    segments = [segment for segment in plain.split("/") if segment]
    known = "/" + "/".join(dropwhile(_VERSION.__eq__, segments))
    if known in _KNOWN_PATHS:
        return known + mark + query
    if path.startswith("/v1/") or plain == "/v1":
        return path[3:]
    return path


def find_format(path: str) -> Format | None:
    """The format of requests posted to this path, None if they are only relayed."""
    return _BY_PATH.get(without_version(path.partition("?")[0]))


def find_counted_format(path: str) -> Format | None:
    """The format of requests posted to this path to count their tokens."""
    return _COUNTS.get(without_version(path.partition("?")[0]))


def find_stored_history(path: str) -> StoredHistory | None:
    """How requests to this path name what the upstream stores; None if they bring everything."""
    wire_format = _guess(path)
    return wire_format.stored_history if wire_format is not None else None


def guess_format(path: str) -> str | None:
    """The name of the API that a path belongs to: `/messages/count_tokens` belongs to `messages`."""
    wire_format = _guess(path)
    return wire_format.name if wire_format is not None else None


def render_error(path: str, error: RequestRefused) -> bytes:
    """One of our errors, as the clients of this path expect errors."""
    wire_format = _guess(path)
    return wire_format.render_error(error) if wire_format is not None else render_openai_error(error)


def _guess(path: str) -> Format | None:
    plain = without_version(path)
    return next((wire_format for prefix, wire_format in _BY_PATH.items() if plain.startswith(prefix)), None)
