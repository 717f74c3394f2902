"""What is inserted into a history for good: originals that were found for the newest user message.

Like a pivot, a recall is a record that applies to exact prefixes, and sends the same bytes in every later
request of its branch. Knows chains and positions; the wire formats know how messages are written.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import is_on_chain


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundExchange:
    """call: a user message and the assistant's after it, as JSON of the wire format, separated by a comma.

    Its name, and that there may be several, is how earlier versions have stored it.
    """

    call: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Recall:
    """A record. Those of another kind are of earlier versions, and count as absent."""

    # The tenant.
    owner: str
    # The chain at `length`, in hex: of the request in which it was decided.
    chain: str
    length: int
    # It stands before the message here, the newest one of that request.
    position: int
    kind: Literal["found"] = "found"
    rounds: tuple[FoundExchange, ...]
    # Raw tokens of all that is inserted, estimated.
    tokens: int
    created_seconds: float
    # The id of the conversation in which it was made.
    conversation: str = ""

    @property
    def key(self) -> str:
        """Under which it is stored, in hex."""
        parts = (self.chain.encode(), self.kind.encode())
        return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).hexdigest()

    @property
    def text(self) -> str:
        """The messages that are inserted, as JSON separated by commas."""
        return ",".join(each.call for each in self.rounds)


def find_eligible_recalls(conversation: Conversation, recalls: Sequence[Recall], start: int) -> list[Recall]:
    """Recalls on the chain whose position is sent, in the order of their positions.

    start: the first position behind the pivot. Where the client no longer sends the message at its position,
    nothing is inserted.
    """
    eligible = [
        recall
        for recall in recalls
        if is_on_chain(conversation, recall.chain, recall.length)
        and start <= recall.position < len(conversation.messages)
        and not conversation.is_gone(recall.position)
    ]
    return sorted(eligible, key=lambda recall: recall.position)
