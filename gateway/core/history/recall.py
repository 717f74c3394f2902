"""What is inserted into a history for good: originals that the model searched for, or that were found for it.

Like a pivot, a recall is a record that applies to exact prefixes, and sends the same bytes in every later
request of its branch. Knows chains and positions; the wire formats know what the insertions mean.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import is_on_chain

# tool: the model called the gateway's tool in its reply. found: pieces that the newest user message names.
RecallKind = Literal["tool", "found"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyMark:
    """What the client was shown of a reply, so that another reply in the same place is not taken for it.

    calls: ids of its tool calls, in order. text: SHA-256, in hex, of its texts without any white space;
    empty if it had none.
    """

    calls: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecallRound:
    """One response that called the tool, and what it was answered.

    call: what the upstream sent, as JSON of the wire format: the messages, blocks or items that the client
    did not see (see `RecallSyntax.splice`). results: likewise, what answers it.
    """

    call: str
    results: str
    # Items of the reply that the client was shown before it: all, and those that are no reasoning.
    shown: int = 0
    said: int = 0
    # The same response holds calls of the client's own tools, too.
    is_parallel: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Recall:
    """A record."""

    # The tenant.
    owner: str
    # The chain at `length`, in hex: of the request in which it was decided.
    chain: str
    length: int
    # The insertion stands before the message here, or inside it: a reply (kind `tool`), or the newest user
    # message (kind `found`).
    position: int
    kind: RecallKind
    rounds: tuple[RecallRound, ...]
    # Raw tokens of all that is inserted, estimated.
    tokens: int
    # Only for the kind `tool`.
    reply: ReplyMark | None = None
    created_seconds: float
    # The id of the conversation in which it was made.
    conversation: str = ""

    @property
    def key(self) -> str:
        """Under which it is stored, in hex: several replies may have been made at one place."""
        shown = (*self.reply.calls, self.reply.text) if self.reply is not None else ()
        parts = [part.encode("utf-8", "surrogatepass") for part in (self.chain, self.kind, *shown)]
        return hashlib.sha256(b"".join(b"%d:%s" % (len(part), part) for part in parts)).hexdigest()


def make_reply_mark(calls: Iterable[str], texts: Iterable[str]) -> ReplyMark:
    """Of the ids of all calls and of all texts, in their order."""
    text = "".join("".join(texts).split())
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else ""
    return ReplyMark(calls=tuple(calls), text=digest)


def find_eligible_recalls(conversation: Conversation, recalls: Sequence[Recall], start: int) -> list[Recall]:
    """Recalls on the chain whose position is sent, in the order of their positions.

    start: the first position behind the pivot. Whether a reply is the one that was shown is for the wire
    format to see. Where the client no longer sends the message at its position, nothing is inserted.
    """
    eligible = [
        recall
        for recall in recalls
        if is_on_chain(conversation, recall.chain, recall.length)
        and start <= recall.position < len(conversation.messages)
        and not conversation.is_gone(recall.position)
    ]
    return sorted(eligible, key=lambda recall: recall.position)
