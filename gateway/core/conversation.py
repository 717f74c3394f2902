"""A received request as one conversation: leading block, messages, and the chain over them.

Knows nothing of who sent it or when. Positions count the messages after the leading block, from 0.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.message import Message


@dataclass(frozen=True, slots=True)
class Conversation:
    """`chain[i]` is the running digest over the first `i` messages; `chain[0]` names tenant and format.

    The leading block is outside the chain: it is always forwarded as sent and may change (it holds the date).
    `opening_end` is the position of the first assistant message, or the length where there is none.
    """

    leading: Sequence[Message]
    messages: Sequence[Message]
    chain: Sequence[bytes]
    opening_end: int

    @property
    def key(self) -> bytes:
        """The chain over everything received."""
        return self.chain[-1]


def begin_conversation(tenant: str, wire_format: str) -> Conversation:
    """The empty conversation: `c0 = H(tenant, wire format)`."""
    name = tenant.encode()
    root = hashlib.sha256(b"%d:%s:%s" % (len(name), name, wire_format.encode())).digest()
    return Conversation(leading=(), messages=[], chain=[root], opening_end=0)


def with_messages(before: Conversation, keep: int, added: Sequence[Message]) -> Conversation:
    """The conversation that shares the first `keep` messages (all leading ones) with `before`, then goes
    on.
    """
    leading = list(before.leading)
    messages = list(before.messages[:keep])
    chain = list(before.chain[: keep + 1])
    opening_end = min(before.opening_end, keep)
    for message in added:
        if message.role == "system" and not messages:
            leading.append(message)
            continue
        if opening_end == len(messages) and message.role != "assistant":
            opening_end += 1
        messages.append(message)
        chain.append(hashlib.sha256(chain[-1] + message.digest).digest())
    return Conversation(leading, messages, chain, opening_end)


def is_boundary(conversation: Conversation, position: int) -> bool:
    """May a cut lie before this position? Never between a call and its results."""
    messages = conversation.messages
    return position >= len(messages) or not messages[position].results


def find_open_group(conversation: Conversation) -> int:
    """Position where the last atomic group begins: the one the model has not answered yet."""
    position = len(conversation.messages) - 1
    while position > 0 and not is_boundary(conversation, position):
        position -= 1
    return max(position, 0)


def find_tool_names(conversation: Conversation) -> list[str | None]:
    """For each position the tool whose result it carries. Ids are resolved inside their own group only."""
    names: list[str | None] = []
    tools: dict[str, str] = {}
    for message in conversation.messages:
        if not message.results:
            tools = {call.id: call.tool for call in message.calls}
        names.append(tools.get(message.results[0]) if message.results else None)
    return names
