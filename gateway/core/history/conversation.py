"""A received request as one conversation: leading block, messages, and the chain over them.

Knows nothing of who sent it or when. Positions count the messages after the leading block, from 0.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from gateway.core.history.message import Message
from gateway.core.history.shared_list import SharedList

# A call that is farther away, or nowhere, is not looked for: thousands of such results would cost seconds.
_MOST_BETWEEN: Final = 200


# Not frozen, for the reason of `Head`, and no tuple: its fields are looked at some thirty times a turn.
@dataclass(slots=True)
class Conversation:
    """`chain[i]` is the running digest over the first `i` messages; `chain[0]` names tenant and format.

    The leading block is outside the chain: it is always forwarded as sent and may change (it holds the date).
    `opening_end` is the position of the first assistant message, or the length where there is none; it is
    never before the end of a group with a sealed message.
    late: positions of a call and of its result where the model has said something else in between.
    """

    leading: Sequence[Message]
    messages: SharedList[Message]
    chain: SharedList[bytes]
    opening_end: int
    late: Sequence[tuple[int, int]] = ()

    @property
    def key(self) -> bytes:
        """The chain over everything received."""
        return self.chain.last


def begin_conversation(tenant: str, wire_format: str) -> Conversation:
    """The empty conversation: `c0 = H(tenant, wire format)`."""
    name = tenant.encode()
    root = hashlib.sha256(b"%d:%s:%s" % (len(name), name, wire_format.encode())).digest()
    return Conversation(leading=(), messages=SharedList([]), chain=SharedList([root]), opening_end=0)


def with_messages(before: Conversation, keep: int, added: Sequence[Message]) -> Conversation:
    """The conversation that shares the first `keep` messages (all leading ones) with `before`, then goes
    on.
    """
    leading = before.leading
    if not keep:
        more = list(takewhile(lambda message: message.role == "system", added))
        leading, added = [*leading, *more], added[len(more) :]
    messages = before.messages.grow(keep, added)
    links, link = [], before.chain[keep]
    late = [pair for pair in before.late if pair[1] < keep] if before.late else []
    opening_end = _find_opening_end(before, keep)
    calls: set[str] = set()  # of the newest reply, as far as it lies in what is added
    role = before.messages[keep - 1].role if keep else ""
    for position, message in enumerate(added, keep):
        if opening_end == position and _is_still_opening(messages, position):
            opening_end += 1
        if message.role == "assistant" != role:
            calls.clear()
        role = message.role
        for call in message.calls:
            calls.add(call.id)
        if message.results and not calls.issuperset(message.results):
            late += _find_late(messages, position)
        if message.is_opaque:
            opening_end = position + 1
        link = hashlib.sha256(link + message.fingerprint).digest()
        links.append(link)
    return Conversation(leading, messages, before.chain.grow(keep + 1, links), opening_end, late)


def _find_late(messages: Sequence[Message], position: int) -> list[tuple[int, int]]:
    """The calls that the message at a position answers late."""
    found = [_find_call(messages, position, answered) for answered in messages[position].results]
    return [(at, position) for at in found if at is not None and count_replies(messages[at:position]) > 1]


def _find_call(messages: Sequence[Message], position: int, answered: str) -> int | None:
    """The nearest call of this id before a position, unless it is answered already: ids may repeat."""
    for at in range(position - 1, max(-1, position - 1 - _MOST_BETWEEN), -1):
        if any(call.id == answered for call in messages[at].calls):
            return at
        if answered in messages[at].results:
            return None
    return None


def _find_opening_end(before: Conversation, keep: int) -> int:
    """Of its first `keep` messages."""
    if before.opening_end < keep or keep == before.messages.length:
        return before.opening_end
    messages = before.messages[:keep]
    sealed = [position for position, message in enumerate(messages) if message.is_opaque]
    end = sealed[-1] + 1 if sealed else 0
    while end < len(messages) and _is_still_opening(messages, end):
        end += 1
    return end


def _is_still_opening(messages: Sequence[Message], position: int) -> bool:
    """No reply begins here: at most one goes on that a sealed message is a part of."""
    if messages[position].role != "assistant":
        return True
    return position > 0 and messages[position - 1].role == "assistant"


def find_fold_start(conversation: Conversation, *, keeps_opening: bool) -> int:
    """The first position that a summary may replace: behind the opening, or else behind what is sealed."""
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
    """May a cut lie before this position? Never between a call and its results, nor inside a reply: what the
    model thought, said and called may be one message or several.
    """
    messages = conversation.messages
    if position >= messages.length or position <= 0:
        return True
    before, message = messages[position - 1], messages[position]
    if message.results or before.calls or message.role == before.role == "assistant":
        return False
    if conversation.late and any(call < position <= result for call, result in conversation.late):
        return False
    return message.role == "assistant" or not _is_awaiting(messages, position)


def _is_awaiting(messages: Sequence[Message], position: int) -> bool:
    """Does a first result of a call before follow before the next reply? Somebody spoke in between."""
    end = position
    while end < len(messages) and not messages[end].results and messages[end].role != "assistant":
        end += 1
    if end == len(messages) or not messages[end].results:
        return False
    start = position
    while start > 0 and messages[start - 1].role != "assistant":
        start -= 1
    return not any(
        answered in messages[end].results for m in messages[start:position] for answered in m.results
    )


def find_reply_end(conversation: Conversation, position: int) -> int:
    """Where the reply ends that begins at a position; the position itself where none does."""
    messages = conversation.messages
    while position < len(messages) and messages[position].role == "assistant":
        position += 1
    return position


def count_replies(messages: Sequence[Message]) -> int:
    """How often the model has answered in these messages."""
    count, before = 0, ""
    for message in messages:
        count += message.role == "assistant" != before
        before = message.role
    return count


def find_open_group(conversation: Conversation) -> int:
    """Position where the last atomic group begins: the one the model has not answered yet."""
    position = conversation.messages.length - 1
    while position > 0 and not is_boundary(conversation, position):
        position -= 1
    return max(position, 0)


def find_tool_names(conversation: Conversation) -> list[tuple[str, ...]]:
    """For each position the tools whose results it carries. Ids are resolved inside their own group only."""
    names: list[tuple[str, ...]] = []
    tools: dict[str, str] = {}
    for position, message in enumerate(conversation.messages):
        if is_boundary(conversation, position):
            tools = {}
        tools.update({call.id: call.tool for call in message.calls})
        names.append(tuple([tools[result] for result in message.results if result in tools]))
    return names
