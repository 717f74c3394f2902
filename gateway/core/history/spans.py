"""Messages that a cut must not separate although they are not neighbors: those between a call and its result.

Two kinds of results make a span. One comes before the next reply, but after other messages. The other is
late: the model has replied in between. Knows positions; one pass over the messages finds all spans.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from gateway.core.history.message import Message

# A call is searched for in this many messages before its result.
_MAX_BETWEEN: Final = 200
_get_end = itemgetter(1)


class Span(NamedTuple):
    """No cut lies before any position in `start + 1 … end`."""

    start: int
    end: int


class Spans:
    """The spans of a conversation, in ascending order of their ends. They may overlap."""

    __slots__ = ("_found", "_merged")

    def __init__(self, found: Sequence[Span] = ()) -> None:
        self._found = found
        # Starts and ends without overlaps, made when they are first needed: few requests ask for them.
        self._merged: tuple[list[int], list[int]] | None = None

    def grow(self, messages: Sequence[Message], keep: int) -> "Spans":
        """The spans of `messages`, if these are the spans of messages that share the first `keep`."""
        before = self._found[: bisect_left(self._found, keep, key=_get_end)] if self._found else ()
        added = find_spans(messages, keep)
        if not added and len(before) == len(self._found):
            return self
        return Spans([*before, *added])

    def cover(self, position: int) -> bool:
        """Whether a span forbids a cut before this position."""
        if not self._found:
            return False
        if self._merged is None:
            self._merged = _merge(self._found)
        starts, ends = self._merged
        at = bisect_left(ends, position)
        return at < len(ends) and starts[at] < position

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spans) and list(self._found) == list(other._found)

    __hash__ = None  # type: ignore[assignment]  # compared by content, like the list in it

    def __repr__(self) -> str:
        return f"Spans({list(self._found)!r})"


def find_spans(messages: Sequence[Message], start: int = 0) -> list[Span]:
    """The spans that end at `start` or behind it. Looks at the messages before only if it has to."""
    finder = _Finder(messages)
    spans: list[Span] = []
    for position in range(start, len(messages)):
        message = messages[position]
        if message.results:
            first = finder.find_first(position, message)
            # Neighbors are never separated in any case.
            if first < position - 1:
                spans.append(Span(first, position))
        finder.add(position, message)
    return spans


class _Finder:
    """Takes the messages in their order."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        # The calls of the newest reply, as far as they have been added.
        self._calls: set[str] = set()
        self._role = ""
        # The nearest position with a result or a reply; None as long as nothing that was added has one.
        self._stop: int | None = None
        # The results since the newest reply.
        self._answered: set[str] = set()
        self._index: _Index | None = None

    def add(self, position: int, message: Message) -> None:
        is_reply = message.role == "assistant"
        if is_reply and self._role != "assistant":
            self._calls.clear()
        self._role = message.role
        for call in message.calls:
            self._calls.add(call.id)
        if is_reply:
            self._stop = position
            self._answered = set()
        elif message.results:
            self._stop = position
            self._answered.update(message.results)
        if self._index is not None:
            self._index.add(position, message)

    def find_first(self, position: int, message: Message) -> int:
        """The first position that the results at this position hold together with theirs."""
        first = self._find_awaited(position, message.results)
        if self._calls.issuperset(message.results):
            return first
        if self._index is None:
            self._index = _Index(self._messages, position)
        return min(first, self._index.find_late_call(position, message.results))

    def _find_awaited(self, position: int, results: Sequence[str]) -> int:
        """The stop before the first result of a reply; the position itself for any later result."""
        if self._stop is None:
            self._look_back(position)
        return position if self._stop is None or not self._answered.isdisjoint(results) else self._stop

    def _look_back(self, position: int) -> None:
        """Takes in the messages from the newest reply before the first that was added."""
        stop = -1
        for at in range(position - 1, -1, -1):
            message = self._messages[at]
            if stop < 0 and (message.results or message.role == "assistant"):
                stop = at
            if message.role == "assistant":
                break
            self._answered.update(message.results)
        self._stop = stop


class _Index:
    """Where each id was last called and last answered, and where the two newest replies begin."""

    def __init__(self, messages: Sequence[Message], position: int) -> None:
        self._messages = messages
        self._called: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        self._replies = (-1, -1)
        for at in range(max(0, position - _MAX_BETWEEN), position):
            self.add(at, messages[at])

    def add(self, position: int, message: Message) -> None:
        for call in message.calls:
            self._called[call.id] = position
        for answered in message.results:
            self._answered[answered] = position
        if message.role == "assistant" and (
            position == 0 or self._messages[position - 1].role != "assistant"
        ):
            self._replies = self._replies[1], position

    def find_late_call(self, position: int, results: Sequence[str]) -> int:
        """The first call whose result comes late here; the position itself if there is none.

        Ids may repeat: the nearest call counts, unless it has a result already.
        """
        first = position
        for answered in results:
            at = self._called.get(answered, -1)
            if max(0, position - _MAX_BETWEEN) <= at < first and self._answered.get(answered, -1) <= at:
                # One reply is that of the call itself.
                own = self._messages[at].role == "assistant"
                if self._replies[1 if own else 0] > at:
                    first = at
        return first


def _merge(spans: Sequence[Span]) -> tuple[list[int], list[int]]:
    starts: list[int] = []
    ends: list[int] = []
    for start, end in spans:
        while ends and ends[-1] > start:
            start = min(start, starts.pop())
            ends.pop()
        starts.append(start)
        ends.append(end)
    return starts, ends
