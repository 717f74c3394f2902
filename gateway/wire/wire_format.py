"""A wire format: one value with everything that differs between the APIs that clients use.

Also the values that its functions take and return. Knows none of the formats; `wire.formats` lists them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.core.errors import RequestRefused, Unreadable
from gateway.core.history.cleared_results import SplitFingerprint, fingerprint_result
from gateway.core.history.message import Message
from gateway.core.history.pivot import Mark, Pivot, list_turns
from gateway.core.history.transcript import TranscriptEntry
from gateway.wire.body import JSON_ERRORS
from gateway.wire.canonical import canonical_part, flatten_content
from gateway.wire.request import RequestBody
from gateway.wire.riding import Ride
from gateway.wire.sse import SseEvent
from gateway.wire.structure import BodyBounds

JsonObject = Mapping[str, object]


class SplitResults(NamedTuple):
    """The slice of a message, and the contents of its tool results apart from it."""

    # The slice with an empty value, or none, in place of each content.
    frame: bytes
    # JSON values, in the order of the results.
    contents: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class ReplyPart:
    """What one JSON object of a response adds to the model's reply."""

    text: str = ""
    # The text is all of the reply, not the next piece of it. It may repeat pieces that came before.
    is_whole: bool = False
    has_tool_calls: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryRequest:
    """A request for a summary, before it is written in a wire format."""

    model: str
    # May be empty.
    system: str
    # The parts of the one user message, with the instruction last.
    parts: tuple[str, ...]
    # The key under which the model takes the limit of its reply.
    output_key: str
    # Tokens of reply: as many as wanted, and as many as fit.
    cap: int
    room: int
    # See Envelope.identity_blocks. Only for APIs that have a place for them.
    identity_blocks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalResponse:
    """A response that the gateway gives without an upstream: one text.

    It cost no tokens. A format whose clients need usage says 0, the others leave usage out.
    """

    # Without the prefix that each format puts before it.
    id: str
    model: str
    created_seconds: int
    text: str
    # As the client asked for it.
    is_streamed: bool


@dataclass(frozen=True, slots=True)
class UsedNames:
    """What a request names instead of repeating it."""

    # The response that it continues.
    previous: str | None = None
    items: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedHistory:
    """The history up to a response."""

    # What the first request brought, a body.
    first: bytes
    # All of it, as raw items: messages and replies.
    items: list[bytes]


class StoredNames(Protocol):
    """What is stored under the names of one tenant; None if it is unknown.

    Raises BeyondBounds if it is larger than any body may be.
    """

    def find_response(self, name: str) -> NamedHistory | None:
        """With the response itself."""

    def find_item(self, name: str) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Expanded:
    """A request with every name replaced by what it stands for."""

    # The body; the received object if it held no name.
    data: bytes
    # The response that the request continues, None if the request held the whole history.
    previous: str | None
    # A body with only the items that this request added, without names.
    own: bytes


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that a later request may name: the items, and the name of each item that has one."""

    name: str
    items: tuple[bytes, ...]
    names: tuple[str | None, ...]


class ResponseCollector(Protocol):
    """Is fed the events of one response."""

    def feed(self, event: SseEvent) -> StoredResponse | None:
        """The response, once, at the event that completes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredHistory:
    """How a request may name an earlier response or item that the upstream stores."""

    # The names in a body. None if it is not understood; never raises.
    find_names: Callable[[bytes], UsedNames | None]
    # None if a name is unknown. Raises BeyondBounds as the names do, and nothing else.
    expand: Callable[[bytes, StoredNames], Expanded | None]
    # The items of a body that `expand` gave as `own`.
    list_items: Callable[[bytes], list[bytes]]
    # A new collector for one response.
    collect: Callable[[], ResponseCollector]
    # May this raw item be a name and nothing else? Cheap; a wrong yes only costs time.
    may_be_name: Callable[[bytes], bool]
    # The names in a body, as paths of what is stored; for a guard, so it reads with suspicion. Raises
    # Unreadable for a body that may name something in a way that is not understood, or beyond the bounds.
    find_used_paths: Callable[[bytes, BodyBounds], set[str]]
    # The names that an event of a response gives. Never raises.
    find_given_names: Callable[[SseEvent], set[str]]
    # Status and code of the API's own error for a name that it does not know.
    unknown_status: int
    unknown_code: str
    # After this error clients send their whole history.
    is_replayed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WireFormat:
    """Functions that take raw bytes of a message take one slice of the body, see RequestBody."""

    # Part of settings and of every fingerprint chain, so it never changes.
    name: str
    # Where its requests are posted.
    path: str
    # Splits a body. Raises Unreadable, and BeyondBounds for one that holds too much.
    parse_body: Callable[[bytes, BodyBounds], RequestBody]
    # The facts of one slice; the second argument is the slice's `message_key`. Raises Unreadable.
    parse_message: Callable[[bytes, bytes], Message]
    # The texts of a slice that `parse_message` has accepted.
    parse_entry: Callable[[bytes], TranscriptEntry]
    # The tool results of a slice that `parse_message` has accepted.
    # Raises MsgspecError, UnicodeDecodeError or RecursionError.
    split_results: Callable[[bytes], SplitResults]
    # The slice with its results cleared (to the placeholder, the last argument) or shortened.
    render_marked: Callable[[bytes, Mark, str], bytes]
    # Messages by role and text, as JSON separated by commas.
    write_turns: Callable[[Iterable[tuple[str, str]]], bytes]
    # The usual key of the reply's limit.
    output_key: str
    render_summary_request: Callable[[SummaryRequest], bytes]
    find_reply_part: Callable[[JsonObject], ReplyPart]
    # The body that was sent upstream, with a request for a summary at its end. See `wire.riding`.
    ride: Ride
    # Keeps a waiting client from giving up; may be sent between any two events of a stream.
    keepalive: bytes
    render_error: Callable[[RequestRefused], bytes]
    # An upstream's error, its body and its status, as one event of a stream that has begun.
    render_stream_error: Callable[[bytes, int], bytes]
    # As a stream or as one body, as the client asked for it.
    render_local_response: Callable[[LocalResponse], bytes]
    # Headers that the API requires in every request.
    headers: tuple[tuple[str, str], ...] = ()
    # None if requests of this format always hold the whole history.
    stored_history: StoredHistory | None = None

    def render_summary(self, pivot: Pivot, next_role: str) -> bytes:
        """The messages that stand for what the pivot covers. next_role: of the message after them."""
        return self.write_turns(list_turns(pivot, next_role))


def parse_split_fingerprint(wire_format: WireFormat, message: Message, raw: bytes) -> SplitFingerprint | None:
    """Fingerprints of a message without its tool results, and of each result. None if it cannot be split.

    The rest of the message is parsed like any message, so the same differences are ignored.
    """
    if not message.results:
        return SplitFingerprint(message.fingerprint)
    try:
        split = wire_format.split_results(raw)
        frame = wire_format.parse_message(split.frame, b"").fingerprint
        return SplitFingerprint(frame, tuple([_fingerprint_content(content) for content in split.contents]))
    except (Unreadable, UnicodeError, *JSON_ERRORS):
        return None


def _fingerprint_content(content: object) -> bytes:
    texts, parts = flatten_content(content)
    return fingerprint_result("".join(texts), [canonical_part(part) for part in parts])
