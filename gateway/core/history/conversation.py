"""A received request as a conversation: leading block, messages, and a chain of fingerprints over them.

Does not know who sent it or when. Positions count the messages after the leading block, from 0. Those that
the client no longer sends count, too (see Trim).
"""

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
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


# Stands for a message that the client no longer sends.
GONE: Final = Message(role="other", key=bytes(32), fingerprint=bytes(32), size_bytes=0)
# What it takes in memory: a place in two lists.
GONE_WEIGHT_BYTES: Final = 16


class Trim(NamedTuple):
    """What a client still sends of a history."""

    # The place in the history of each received message, in ascending order.
    positions: tuple[int, ...]
    # From here on the chain is that of the whole history. The links before stand for nothing.
    known_from: int


# Not frozen: one is made for every request, and a frozen dataclass takes six times as long to construct.
@dataclass(slots=True)
class Conversation:
    # The system and developer messages at the beginning. They are outside the chain: they are always
    # forwarded as sent, and may change between turns (they contain the date).
    leading: Sequence[Message]
    messages: list[Message]
    # `chain[i]` is the running fingerprint of the first `i` messages; `chain[0]` stands for tenant and
    # format.
    chain: list[bytes]
    # The position of the first reply, or the number of messages if there is none. It is never before the end
    # of a group with an opaque message.
    opening_end: int
    # The messages that belong together although they are not neighbors, in their order, without overlaps.
    spans: Sequence[Span] = ()
    # Set if `messages` holds some that were not received.
    trim: Trim | None = None
    # The chain over everything received.
    key: bytes = field(init=False)
    # See find_open_group; found when it is first needed.
    open_group: int | None = field(init=False, default=None, compare=False)
    # See find_changed; likewise.
    changed: Sequence[int] | None = field(init=False, default=None, compare=False)

    def __post_init__(self) -> None:
        self.key = self.chain[-1]

    @property
    def known_chain(self) -> Sequence[bytes]:
        """The links that a record may be found by, in their order."""
        return self.chain if self.trim is None else self.chain[self.trim.known_from :]

    @property
    def known_from(self) -> int:
        """From here on the chain is that of the whole history."""
        return self.trim.known_from if self.trim is not None else 0

    @property
    def received(self) -> Sequence[Message]:
        """The messages without those that are gone."""
        messages, trim = self.messages, self.trim
        return messages if trim is None else [messages[position] for position in trim.positions]

    def is_gone(self, position: int) -> bool:
        return self.messages[position] is GONE

    def find_link(self, length: int) -> str:
        """The chain over the first `length` messages, in hex; empty if it is not known."""
        return self.chain[length].hex() if self.known_from <= length < len(self.chain) else ""

    def find_role(self, position: int) -> str:
        """Of the first message from here on that was received; `none` behind the last one."""
        messages = self.messages
        while position < len(messages) and messages[position] is GONE:
            position += 1
        return messages[position].role if position < len(messages) else "none"

    def find_changed(self) -> Sequence[int]:
        """Positions of the received messages that the client does not send as it first did, in order.

        All are named for which this is not known.
        """
        if self.trim is None:
            return ()
        if self.changed is None:
            chain, messages = self.chain, self.messages
            self.changed = [
                at for at in self.trim.positions if add_link(chain[at], messages[at]) != chain[at + 1]
            ]
        return self.changed

    def index(self, position: int) -> int:
        """How many received messages stand before a position."""
        return position if self.trim is None else bisect_left(self.trim.positions, position)


def add_link(link: bytes, message: Message) -> bytes:
    return hashlib.sha256(link + message.fingerprint).digest()


def begin_conversation(owner: str, wire_format: str) -> Conversation:
    """The empty conversation: `c0 = H(tenant, wire format)`."""
    name = owner.encode()
    root = hashlib.sha256(b"%d:%s:%s" % (len(name), name, wire_format.encode())).digest()
    return Conversation(leading=(), messages=[], chain=[root], opening_end=0)


def with_messages(before: Conversation, keep: int, added: Sequence[Message]) -> Conversation:
    """The conversation with the first `keep` messages (and all leading ones) of `before`, then `added`.

    before: with all its messages, because a trimmed one is not known to be what another request begins with.
    """
    leading = before.leading
    if not keep:
        more = list(takewhile(lambda message: message.role == "system", added))
        leading, added = [*leading, *more], added[len(more) :]
    messages, chain = [*before.messages[:keep], *added], before.chain[: keep + 1]
    link = chain[-1]
    opening_end = _find_opening_end(before, keep)
    for position, message in enumerate(added, keep):
        if opening_end == position and _is_still_opening(messages, position):
            opening_end += 1
        if message.is_opaque:
            opening_end = position + 1
        link = add_link(link, message)
        chain.append(link)
    return Conversation(leading, messages, chain, opening_end, find_spans(messages, keep, before.spans))


def _find_opening_end(before: Conversation, keep: int) -> int:
    """The end of the opening within the first `keep` messages."""
    if before.opening_end < keep or keep == len(before.messages):
        return before.opening_end
    messages = before.messages[:keep]
    opaque = [position for position, message in enumerate(messages) if message.is_opaque]
    end = opaque[-1] + 1 if opaque else 0
    while end < len(messages) and _is_still_opening(messages, end):
        end += 1
    return end


def _is_still_opening(messages: Sequence[Message], position: int) -> bool:
    """Whether no reply begins here. A reply may continue here if an opaque message is a part of it."""
    if messages[position].role != "assistant":
        return True
    return position > 0 and messages[position - 1].role == "assistant"


def find_replaceable_start(conversation: Conversation, *, keeps_opening: bool) -> int:
    """The first position that a summary may replace: after the opening, or after the opaque messages."""
    if keeps_opening:
        return conversation.opening_end
    messages = conversation.messages
    start = conversation.opening_end
    while start > 0 and not messages[start - 1].is_opaque:
        start -= 1
    while start and not is_boundary(conversation, start):
        start += 1
    return start


def is_boundary(conversation: Conversation, position: int) -> bool:
    """Whether a cut may lie before this position.

    It never separates a call from its results, nor the messages of one reply: what the model thought, said
    and called may be one message or several.
    """
    messages = conversation.messages
    if position >= len(messages) or position <= 0:
        return True
    before, message = messages[position - 1], messages[position]
    if message.results or before.calls or message.role == before.role == "assistant":
        return False
    return not conversation.spans or not is_inside(conversation.spans, position)


def list_links(conversation: Conversation, start: int, end: int | None = None) -> Iterator[bytes]:
    """The links from `start` to `end` at which a request or a cut may end, the last one first."""
    first = max(start, 1, conversation.known_from)
    last = len(conversation.messages) if end is None else end
    for position in range(last, first - 1, -1):
        if is_boundary(conversation, position):
            yield conversation.chain[position]


def find_reply_end(conversation: Conversation, position: int) -> int:
    """The end of the reply that begins at a position; the position itself if no reply begins there."""
    messages = conversation.messages
    while position < len(messages) and messages[position].role == "assistant":
        position += 1
    return position


def count_replies(messages: Sequence[Message]) -> int:
    """The number of replies of the model in these messages."""
    count, before = 0, ""
    for message in messages:
        count += message.role == "assistant" != before
        before = message.role
    return count


def find_open_group(conversation: Conversation) -> int:
    """The position of the last atomic group, which the model has not answered yet."""
    if conversation.open_group is None:
        position = len(conversation.messages) - 1
        while position > 0 and not is_boundary(conversation, position):
            position -= 1
        conversation.open_group = max(position, 0)
    return conversation.open_group


def find_tool_names(conversation: Conversation) -> list[tuple[str, ...]]:
    """For each position the tools whose results it carries. An id refers to a call in the same group only."""
    names: list[tuple[str, ...]] = []
    tools: dict[str, str] = {}
    for position, message in enumerate(conversation.messages):
        if is_boundary(conversation, position):
            tools = {}
        tools.update({call.id: call.tool for call in message.calls})
        names.append(tuple([tools[result] for result in message.results if result in tools]))
    return names
