"""Messages that a cut must not separate although they are not neighbors: those between a call and its result.

Two kinds of results make a span. One comes before the next reply, but after other messages. The other is
late: the model has replied in between. One pass over the messages finds all spans.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
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


def find_spans(messages: Sequence[Message], keep: int = 0, before: Sequence[Span] = ()) -> Sequence[Span]:
    """The spans of these messages in their order; those that overlap are one.

    before: those of messages that share the first `keep`.
    """
    if not before:
        return merge_spans(_walk(messages, keep))
    whole = bisect_left(before, keep, key=_get_end)
    # A span that has several results may have lost only the last of them.
    start = min(keep, before[whole].start + 1) if whole < len(before) else keep
    return merge_spans([*before[:whole], *_walk(messages, start)])


def merge_spans(found: Iterable[Span]) -> list[Span]:
    """found: in ascending order of their ends."""
    spans: list[Span] = []
    for start, end in found:
        while spans and spans[-1].end > start:
            start = min(start, spans.pop().start)
        spans.append(Span(start, end))
    return spans


def is_inside(spans: Sequence[Span], position: int) -> bool:
    """Whether one of these, which do not overlap, forbids a cut before this position."""
    at = bisect_left(spans, position, key=_get_end)
    return at < len(spans) and spans[at].start < position


def _walk(messages: Sequence[Message], start: int) -> Iterator[Span]:
    """The spans that end at `start` or behind it. Looks at the messages from the newest reply before on, and
    further back only for a result that this one did not call for.
    """
    # Since the newest reply: its calls, the results, and the nearest position with a reply or a result.
    calls, answered, stop = set[str](), set[str](), 0
    index: _Index | None = None
    begin = _find_newest_reply(messages, start)
    for position in range(begin, len(messages)):
        message = messages[position]
        results = message.results
        if results and position >= start:
            first = stop if answered.isdisjoint(results) else position
            if not calls.issuperset(results):
                index = index or _Index(messages, position)
                first = min(first, index.find_late_call(position, results))
            # Neighbors are never separated in any case.
            if first < position - 1:
                yield Span(first, position)
        if message.role == "assistant":
            if _begins_reply(messages, position):
                calls.clear()
            stop, answered = position, set()
        elif results:
            stop = position
            answered.update(results)
        calls.update([call.id for call in message.calls])
        if index is not None:
            index.add(position)


def _find_newest_reply(messages: Sequence[Message], end: int) -> int:
    """Where the newest reply before a position begins; 0 if there is none."""
    while end > 0 and messages[end - 1].role != "assistant":
        end -= 1
    while end > 0 and messages[end - 1].role == "assistant":
        end -= 1
    return end


def _begins_reply(messages: Sequence[Message], position: int) -> bool:
    is_reply = messages[position].role == "assistant"
    return is_reply and (position == 0 or messages[position - 1].role != "assistant")


class _Index:
    """Where each id was last called and last answered, and where the two newest replies begin."""

    def __init__(self, messages: Sequence[Message], position: int) -> None:
        self._messages = messages
        self._called: dict[str, int] = {}
        self._answered: dict[str, int] = {}
        self._replies = (-1, -1)
        for at in range(max(0, position - _MAX_BETWEEN), position):
            self.add(at)

    def add(self, position: int) -> None:
        message = self._messages[position]
        self._called.update([(call.id, position) for call in message.calls])
        self._answered.update([(answered, position) for answered in message.results])
        if _begins_reply(self._messages, position):
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
