"""What a compaction leaves behind: a pivot, or marks on tool results; and when either still applies.

Knows chains and positions. A miss costs a summary; a wrong match poisons a session (DESIGN §3).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.core.history.conversation import Conversation, find_open_group

# Where roles must alternate and nothing is to be said. An empty text is refused by some servers.
_SEPARATOR: Final = "(end of the summary)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pivot:
    """A summary that stands for the messages from the opening's end to `covers`.

    owner: tenant. key: the chain at `covers`, hex. tokens: raw estimate of the inserted messages.
    question: stands before the summary where no opening does. resume: the user message after it;
    empty where only the order of roles may ask for one.
    opening_chars: texts of the opening longer than this are cut in the middle; None leaves it whole.
    opening_tokens: raw estimate of the opening as it is sent. saved_tokens: true tokens it took off.
    is_digest: made without a model, because none could be asked.
    """

    owner: str
    key: str
    covers: int
    opening_end: int
    summary: str
    question: str | None
    resume: str
    tokens: int
    opening_chars: int | None
    opening_tokens: int
    saved_tokens: int
    created_seconds: float
    is_digest: bool = False


def list_turns(pivot: Pivot, next_role: str) -> list[tuple[Literal["user", "assistant"], str]]:
    """Role and text of the messages that stand for everything the pivot covers.

    Roles alternate: a question before the summary where no opening leads to it, a resume text behind it
    where the tail does not begin with a user message; a neutral separator where no resume text is wanted.
    """
    turns: list[tuple[Literal["user", "assistant"], str]] = []
    if pivot.question is not None:
        turns.append(("user", pivot.question))
    turns.append(("assistant", pivot.summary))
    if next_role != "user":
        turns.append(("user", pivot.resume or _SEPARATOR))
    return turns


@dataclass(frozen=True, slots=True)
class Mark:
    """A message that is sent shortened: its text cleared, or each text cut to `keep_chars` in the middle."""

    position: int
    keep_chars: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Marks that were decided together. key: the chain at the decision, hex. saved_tokens: true tokens."""

    owner: str
    key: str
    length: int
    placeholder: str
    marks: tuple[Mark, ...]
    saved_tokens: int


def is_on_chain(conversation: Conversation, key: str, length: int) -> bool:
    """Does the conversation begin with exactly the `length` messages that the key stands for?"""
    chain = conversation.chain
    return length < chain.length and chain[length].hex() == key


def find_eligible_pivots(conversation: Conversation, pivots: Iterable[Pivot]) -> list[Pivot]:
    """The one that covers least first."""
    eligible = [pivot for pivot in pivots if is_eligible(conversation, pivot)]
    return sorted(eligible, key=lambda pivot: pivot.covers)


def is_eligible(conversation: Conversation, pivot: Pivot) -> bool:
    """On the chain, and before the open group."""
    is_on = is_on_chain(conversation, pivot.key, pivot.covers)
    return is_on and pivot.covers <= find_open_group(conversation)


def find_eligible_batches(conversation: Conversation, batches: Sequence[Batch]) -> list[Batch]:
    """Those on the chain, in the order they were decided."""
    eligible = [batch for batch in batches if is_on_chain(conversation, batch.key, batch.length)]
    return sorted(eligible, key=lambda batch: batch.length)
