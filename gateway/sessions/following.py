"""A session that this process has read, and whether a request brings anything new to it."""

from typing import Final

from msgspec.structs import replace

from gateway.conversations.turn import Turn
from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import is_on_chain
from gateway.core.session.reader import SessionReader
from gateway.lru import ENTRY_WEIGHT_BYTES
from gateway.sessions.record import StoredSession

DAY_SECONDS: Final = 86_400
_READING_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 3_000
_LISTED_WEIGHT_BYTES: Final = 250
# Links by which a request is known that is sent once more, and how much of each is kept.
_KNOWN_ENDS: Final = 32
_END_DIGITS: Final = 16


class FollowedSession:
    """What this process has read of a conversation."""

    __slots__ = ("keep_seconds", "reader", "session", "stored", "tries", "work")

    def __init__(self, session: StoredSession, reader: SessionReader) -> None:
        self.session = session
        self.reader = reader
        # What the session has of it.
        self.work = reader.work()
        # As the store has it.
        self.stored: StoredSession | None = None
        self.keep_seconds = 0.0
        self.tries = 0

    @property
    def weight_bytes(self) -> int:
        session = self.session
        listed = len(session.files) + len(session.commands) + len(session.titles) + len(session.todos)
        return _READING_WEIGHT_BYTES + self.reader.weight_bytes + _LISTED_WEIGHT_BYTES * listed


def may_keep(turn: Turn) -> bool:
    """A summary of a session quotes its texts, so none is kept where originals are not."""
    return turn.policy.session_summary and turn.policy.originals.keep


def choose_seconds(turn: Turn, keep_seconds: float) -> float:
    days = turn.policy.originals.days
    return keep_seconds if days is None else days * DAY_SECONDS


def continues(conversation: Conversation, session: StoredSession) -> bool:
    return is_on_chain(conversation, session.link, session.length)


def has_read(session: StoredSession, conversation: Conversation) -> bool:
    """Whether it has come to the end of this conversation, or beyond it."""
    return conversation.key.hex()[:_END_DIGITS] in session.ends


def says_more(session: StoredSession, before: StoredSession) -> bool:
    """Whether more has changed than how far it was read."""
    return before != replace(
        session,
        link=before.link,
        length=before.length,
        ends=before.ends,
        updated_seconds=before.updated_seconds,
    )


def with_place(session: StoredSession, conversation: Conversation) -> StoredSession:
    """Read to the end of this conversation."""
    ends = tuple(link.hex()[:_END_DIGITS] for link in conversation.chain[-_KNOWN_ENDS:])
    return replace(session, link=conversation.key.hex(), length=len(conversation.messages), ends=ends)
