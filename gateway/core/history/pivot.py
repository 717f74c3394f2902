"""Pivots, marks and recalls: what compactions and prunings leave, and whether it applies to a conversation.

Knows chains and positions. A missed match costs a summary; a wrong one corrupts a session, so matches are
exact, and what applies sends the same bytes in every later request of its branch.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from gateway.core.history.conversation import Conversation, find_open_group
from gateway.core.history.lists import NO_LISTS, Lists, Told

# How a text came about: written by a model, made of quotes, or a note that something is missing. It is said
# in front of it, because models take an unmarked summary for what was really said, with its mistakes.
TextKind = Literal["summary", "digest", "note"]

_HEADS: Final[dict[TextKind, str]] = {
    "summary": (
        "This is a summary of earlier messages of this conversation. "
        "It was written by a model and is not verified."
    ),
    # The digest's own first line says how it was made.
    "digest": "This is a digest of earlier messages of this conversation.",
    # The policy's note says itself what is missing.
    "note": "",
}
# The id is the only name of the conversation that a model can pass to a tool that searches (docs/recall.md).
_KEPT: Final = "The originals are kept and can be searched under the conversation id {id}."


def make_framing(kind: TextKind, conversation_id: str | None) -> str:
    """One line, or "" if there is nothing to say. conversation_id: None where originals are not kept."""
    kept = _KEPT.format(id=conversation_id) if conversation_id else ""
    return " ".join(filter(None, (_HEADS[kind], kept)))


# A user message between two of the assistant if no resume text is configured; some servers refuse an empty
# text.
_SEPARATOR: Final = "(end of the summary)"
# Stands for an opening without texts that the client has dropped.
_NO_OPENING: Final = "(The beginning of this conversation is no longer available.)"


@dataclass(frozen=True, slots=True)
class MadeText:
    """A text that the gateway made, and its version."""

    version: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pivot:
    """A summary that replaces the messages from the opening's end to `covers`. A record."""

    # The tenant.
    owner: str
    # The chain at `covers`, in hex.
    key: str
    covers: int
    opening_end: int
    # The text of a model or of a person; of a digest or note, what a program says first.
    summary: str
    # The user message before the summary; None if the opening precedes it.
    question: str | None
    # The user message after it; if empty, one is inserted only where roles must alternate.
    resume: str
    # Raw tokens of the inserted messages, estimated.
    tokens: int
    # Raw tokens of the opening, estimated, without the marks on it.
    opening_tokens: int
    # True tokens saved.
    saved_tokens: int
    created_seconds: float
    # Made without a model.
    is_digest: bool = False
    # What the opening says, for a client that drops it later.
    opening: str | None = None
    # A person asked for it: it applies at once, also below the thresholds.
    is_manual: bool = False
    # Grows when a person edits the summary, or a summary replaces a digest under the same key.
    version: int = 1
    # When a person wrote this version; None for a text that the gateway made.
    edited_seconds: float | None = None
    # What stood here before a person's first edit; None if nobody has edited it.
    original: MadeText | None = None
    # The id of the conversation in which it was made, under which its originals are kept.
    conversation: str = ""
    # Says what the summary is (`make_framing`); empty for none.
    framing: str = ""
    # Pieces of the originals that stand behind the summary; empty for none.
    recalled: str = ""
    # What a program knows beside the summary. Pivots of earlier gateways have it in their texts.
    lists: Lists = NO_LISTS

    @property
    def is_edited(self) -> bool:
        return self.edited_seconds is not None

    @property
    def told(self) -> Told:
        """The summary with its lists, which a person may edit."""
        return Told(self.summary, self.lists)

    @property
    def text(self) -> str:
        """What is sent: the framing, the summary with its lists, and what was recalled."""
        return "\n\n".join(filter(None, (self.framing, self.told.text, self.recalled)))


def edit_pivot(pivot: Pivot, text: str, raw_tokens: int, true_tokens: int, now_seconds: float) -> Pivot:
    """The next version of a pivot. raw_tokens, true_tokens: by how many the new text is longer."""
    return replace(
        pivot,
        summary=text,
        # The text says all that is shown: what a person has taken out of the lists does not come back.
        lists=NO_LISTS,
        original=pivot.original or MadeText(pivot.version, pivot.told.text),
        version=pivot.version + 1,
        edited_seconds=now_seconds,
        # A person's text is not replaced by a summary of the same messages, as a digest is.
        is_digest=False,
        tokens=max(0, pivot.tokens + raw_tokens),
        saved_tokens=max(0, pivot.saved_tokens - true_tokens),
    )


def list_turns(pivot: Pivot, next_role: str) -> list[tuple[Literal["user", "assistant"], str]]:
    """Role and text of the messages that replace everything the pivot covers.

    Roles alternate: a question before the summary if no opening precedes it, and a resume text after it if
    the tail does not begin with a user message (a neutral text if no resume text is configured).
    """
    turns: list[tuple[Literal["user", "assistant"], str]] = []
    if pivot.question is not None:
        turns.append(("user", pivot.question))
    turns.append(("assistant", pivot.text))
    if next_role != "user":
        turns.append(("user", pivot.resume or _SEPARATOR))
    return turns


@dataclass(frozen=True, slots=True)
class Mark:
    """A message that is sent shortened: cleared, or each text cut to `keep_chars` in the middle."""

    position: int
    keep_chars: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Marks that were decided together. A record."""

    owner: str
    # The chain over the `length` messages at the time of the decision, in hex.
    key: str
    length: int
    placeholder: str
    marks: tuple[Mark, ...]
    # True tokens.
    saved_tokens: int
    # Its marks cut messages in the middle that the upstream has refused as too long.
    is_cut: bool = False
    # The id of the conversation in which it was made.
    conversation: str = ""


def is_on_chain(conversation: Conversation, key: str, length: int) -> bool:
    """Whether the conversation begins with exactly the `length` messages that the key identifies."""
    chain = conversation.chain
    return length < len(chain) and chain[length].hex() == key


def find_eligible_pivots(conversation: Conversation, pivots: Iterable[Pivot]) -> list[Pivot]:
    """Eligible pivots, in ascending order of what they cover."""
    eligible = [place_pivot(pivot, conversation) for pivot in pivots if is_eligible(conversation, pivot)]
    return sorted(eligible, key=lambda pivot: pivot.covers)


def is_eligible(conversation: Conversation, pivot: Pivot) -> bool:
    """Whether the pivot is on the chain and ends before the open group."""
    is_on = is_on_chain(conversation, pivot.key, pivot.covers)
    return is_on and pivot.covers <= find_open_group(conversation)


def place_pivot(pivot: Pivot, conversation: Conversation) -> Pivot:
    """The pivot as it applies to a trimmed history. An opening that the client has dropped is sent as the
    question before the summary; one that the client has changed stays as it is now.
    """
    if conversation.trim is None or not pivot.opening_end or pivot.opening_end == conversation.opening_end:
        return pivot
    if conversation.opening_end:
        return replace(pivot, opening_end=conversation.opening_end)
    return replace(pivot, opening_end=0, question=pivot.opening or _NO_OPENING)


def find_eligible_batches(conversation: Conversation, batches: Sequence[Batch]) -> list[Batch]:
    """Batches on the chain, in the order of their decisions, without marks of messages that are gone."""
    eligible = [
        _without_gone(batch, conversation)
        for batch in batches
        if is_on_chain(conversation, batch.key, batch.length)
    ]
    return sorted(eligible, key=lambda batch: batch.length)


def _without_gone(batch: Batch, conversation: Conversation) -> Batch:
    if conversation.trim is None:
        return batch
    marks = [mark for mark in batch.marks if not conversation.is_gone(mark.position)]
    return replace(batch, marks=tuple(marks)) if len(marks) < len(batch.marks) else batch


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
