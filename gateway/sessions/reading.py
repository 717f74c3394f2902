"""Reads what is new in a history: its work, the diffs to be stored, and what the first user message was."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from gateway.bounds.lanes import Steps
from gateway.conversations.reading import Received
from gateway.core.errors import Unreadable
from gateway.core.history.transcript import UNKNOWN_ENTRY, TranscriptEntry
from gateway.core.session.reader import SessionReader
from gateway.core.session.titles import find_asked
from gateway.core.session.work import SessionWork
from gateway.sessions.diffs import pack_changes
from gateway.sessions.record import StoredSession, with_work
from gateway.wire.body import JSON_ERRORS

# Of a core, for what one turn brings. A session of a million tokens takes less, read from its beginning.
_MOST_SECONDS: Final = 2.0


class Unread(NamedTuple):
    """A history of which the reader has read the messages before `start`. Diffs of changes before `written`
    are stored already. session, work: what was known until now.
    """

    received: Received
    reader: SessionReader
    start: int
    written: int
    session: StoredSession
    work: SessionWork


class ReadMessages(NamedTuple):
    """session: with the work of the whole history. packed: records of diffs by position. first: what the user
    first asked, if that is among what was read.
    """

    session: StoredSession
    work: SessionWork
    packed: dict[int, bytes]
    first: str


def read_messages(unread: Unread) -> Steps[ReadMessages]:
    """The reader has read everything then. Messages that are gone, or cannot be read, are left out, and so is
    what later ones did where the time is over.
    """
    received, first = unread.received, ""
    messages = received.conversation.messages
    left_seconds = _MOST_SECONDS
    for position in _list_positions(unread):
        end_seconds = time.thread_time() + left_seconds
        entry = _parse(received, position)
        unread.reader.feed(position, messages[position], entry, partial(_is_over, end_seconds))
        if not first and messages[position].role == "user":
            first = find_asked(entry)
        left_seconds = end_seconds - time.thread_time()
        yield
    work = unread.reader.work()
    changes = [change for change in work.changes if change.position >= unread.written]
    session = unread.session if work == unread.work else with_work(unread.session, work, unread.work)
    return ReadMessages(session, work, pack_changes(changes), first)


def _is_over(end_seconds: float) -> bool:
    return time.thread_time() > end_seconds


def count_bytes(unread: Unread) -> int:
    """Of all messages that are to be read. At once, however many they are."""
    conversation, body = unread.received.conversation, unread.received.body
    first = len(conversation.leading) + conversation.index(unread.start)
    return body.inside_end - body.places[first].start if first < len(body.places) else 0


def has_calls(unread: Unread) -> bool:
    """Looks at each message: for few of them."""
    messages = unread.received.conversation.messages
    return any(messages[position].calls for position in _list_positions(unread))


def _list_positions(unread: Unread) -> Iterator[int]:
    conversation = unread.received.conversation
    every = range(unread.start, len(conversation.messages))
    return (position for position in every if not conversation.is_gone(position))


def _parse(received: Received, position: int) -> TranscriptEntry:
    try:
        return received.format.parse_entry(received.raw(position))
    except (Unreadable, UnicodeError, *JSON_ERRORS):
        return UNKNOWN_ENTRY
