"""What a request may only name because upstream keeps it: earlier answers and single items.

The shape that a wire format fills in. Knows nothing of where names are remembered.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.wire.sse import SseEvent


class Names(Protocol):
    """What is remembered under the names of one tenant."""

    def read_answer(self, name: str) -> list[bytes] | None:
        """Everything up to and with this answer, as raw items."""

    def read_item(self, name: str) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Expanded:
    """A request that says everything itself.

    data: the body; the received object where nothing was named. previous: the answer it went on from, None
    where it said all. own: a body with what this request brought, nothing in it a name.
    """

    data: bytes
    previous: str | None
    own: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that may be named later: itself, and its items by their own names."""

    name: str
    items: tuple[bytes, ...]
    names: tuple[str | None, ...]


class AnswerItems(Protocol):
    """Told the events of one answer."""

    def feed(self, event: SseEvent) -> Answered | None:
        """The answer, once, when it is whole."""


@dataclass(frozen=True, slots=True)
class NamedHistory:
    """expand: None where a name is unknown; never raises. list_items: of an `own` body.
    collect: a fresh reader of one answer. is_name: is this item, as it stands in a body, nothing but a name?
    Cheap: a wrong yes costs time.
    """

    expand: Callable[[bytes, Names], Expanded | None]
    list_items: Callable[[bytes], list[bytes]]
    collect: Callable[[], AnswerItems]
    is_name: Callable[[bytes], bool]
