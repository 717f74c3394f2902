"""How a request names an earlier response or item that the upstream stores, instead of repeating it.

`conversations.stored_responses` remembers what the names stand for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.wire.body import BodyBounds
from gateway.wire.sse import SseEvent


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
