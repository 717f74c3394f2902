"""Follows conversations and keeps a record of what each did. It is the only writer of these records.

After a response it is told of the turn in one plain call. A moment later the new messages are read in the
background; what waits is bounded, and of several turns of one conversation only the newest is read. A history
of which this process has read nothing, or another one, is read from its beginning.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.bounds.background import WorkQueue
from gateway.bounds.lanes import Lanes, take_all_steps
from gateway.conversations.turn import Turn
from gateway.core.errors import RequestRefused
from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import Pivot, is_on_chain
from gateway.core.session.reader import SessionReader
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru
from gateway.sessions.diffs import DiffStore
from gateway.sessions.reading import ReadMessages, Unread, count_bytes, has_calls, read_messages
from gateway.sessions.record import (
    KIND,
    StoredSession,
    TitleOnly,
    TitleSource,
    make_work,
    with_title,
)
from gateway.sessions.title_calls import TitleCalls, TitleReply, read_title, watch_title_call
from gateway.sessions.titles import find_summary_title, list_proofs
from gateway.state.records import K, Kind, Records
from gateway.store.interface import LATEST, Found, Key, ListedRecord, Lookup, Store, StoreError
from gateway.store.keys import make_tag

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


class SessionRecords:
    """tag: of the owner, see `store.keys`. What is loaded raises StoreError."""

    def __init__(self, store: Store, keep_seconds: float) -> None:
        """keep_seconds: unless a record is written with another time."""
        self._store = store
        self._sessions = Records(store, Kind(name=KIND, type=StoredSession, keep_seconds=keep_seconds))
        self._titles = Records(store, Kind(name=KIND, type=TitleOnly, keep_seconds=keep_seconds))

    async def load(self, tag: str, conversation_id: str) -> StoredSession | None:
        (found,) = await self._store.get(tag, [Lookup(KIND, (conversation_id,))], wait=LATEST)
        return _parse(self._sessions, tag, found)

    async def load_titles(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """By conversation. wanted: ids of conversations by the tag of their owner. A round trip for each."""
        titles: dict[str, str] = {}
        for tag, ids in wanted.items():
            lookups = [Lookup(KIND, (identity,)) for identity in ids]
            found = await self._store.get(tag, lookups, wait=LATEST)
            parsed = await asyncio.to_thread(self._parse_titles, tag, found)
            titles |= {identity: title for identity, title in zip(ids, parsed, strict=True) if title}
        return titles

    def write(self, session: StoredSession, keep_seconds: float) -> None:
        self._sessions.put(session.owner, session.id, session, group=session.id, keep_seconds=keep_seconds)

    def _parse_titles(self, tag: str, found: Sequence[Found | None]) -> list[str]:
        parsed = [_parse(self._titles, tag, each) for each in found]
        return [each.title if each is not None else "" for each in parsed]


def _parse(records: Records[K], tag: str, found: Found | None) -> K | None:
    if found is None:
        return None
    listed = ListedRecord(Key(tag, KIND, found.name), found.name, found.value)
    return next((each.record for each in records.parse_listed([listed])), None)


log = logging.getLogger("gateway.sessions")

# Bodies that wait to be read. What is beyond is left out, and comes with the next turn.
_WAITING_BYTES: Final = 16 << 20
_TITLE_WEIGHT_BYTES: Final = 1_000
# Of the turns of a conversation in this time, one is read with all that the others brought: the way through a
# thread and the store costs more than reading. Those who look at sessions end the pause.
_PAUSE_SECONDS: Final = 60.0
# Those who look at one session wait for its newest turns, but not for long.
_PATIENCE_SECONDS: Final = 5.0
# Bodies that are held meanwhile; most of them are also the newest of their conversation.
_HELD_BYTES: Final = 8 << 20
# A history that was read before, and of which memory knows nothing, is read again up to this size: that takes
# 50 ms of a thread. Beyond it the reader goes on with the record, and what files held is not known.
_READ_AGAIN_BYTES: Final = 512 << 10
# Fewer bytes without tool calls are read on the event loop: the way through a thread takes longer.
_INLINE_BYTES: Final = 4 * 1024
# No client waits for what is read here, so it stays out of the threads for small work.
_LANE_BYTES: Final = 5 << 20
# A title call comes with the first requests of its session. So many of them look for it in the store.
_TITLE_TRIES: Final = 4
_EARLY_BYTES: Final = 1 << 16


class _SummaryTitle(NamedTuple):
    turn: Turn
    title: str


class _EarlyTitle(NamedTuple):
    owner: str
    title: str


# The id of a conversation with a new turn, the title of a summary, or the reply to a title call.
_Job = str | _SummaryTitle | TitleReply


class SessionKeeper:
    """keep_seconds: unless the policy says otherwise. max_bytes: of memory. clock: seconds since 1970."""

    def __init__(
        self,
        store: Store,
        diffs: DiffStore,
        lanes: Lanes,
        keep_seconds: float,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._records = SessionRecords(store, keep_seconds)
        self.diffs = diffs
        self._lanes = lanes
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._queue: WorkQueue[_Job] = WorkQueue(self._work, _WAITING_BYTES)
        # The newest turn of each conversation that waits, and those of which the queue does not know yet.
        self._turns: dict[str, Turn] = {}
        self._unqueued: dict[str, int] = {}
        self._unqueued_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._readings: Lru[str, FollowedSession] = Lru(max_bytes)
        self._titles = TitleCalls(store, keep_seconds)
        # Of summaries that were made before anything of their conversation was read.
        self._early: Lru[str, _EarlyTitle] = Lru(_EARLY_BYTES)
        # Whose job runs, by the tag of the owner and the conversation, and whether it was deleted meanwhile.
        self._current = ("", "")
        self._forgotten = False
        self._warned: set[str] = set()

    @property
    def waiting_bytes(self) -> int:
        """What waits to be read."""
        return self._queue.waiting_bytes + self._unqueued_bytes

    async def finish(self) -> None:
        """Returns once what was noted by now is with the store. More may be noted meanwhile."""
        self._put_turns()
        await self._queue.finish()

    # What happens. These calls only queue a job.

    def note_request(self, turn: Turn) -> None:
        """An answered request."""
        if turn.purpose not in ("main", "agent") or not may_keep(turn):
            return
        identity = turn.conversation_id
        is_waiting = identity in self._turns
        self._turns[identity] = turn
        if is_waiting:
            return
        self._unqueued[identity] = turn.weight_bytes
        self._unqueued_bytes += turn.weight_bytes
        if self._unqueued_bytes > _HELD_BYTES:
            self._put_turns()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._put_turns)

    def _put_turns(self) -> None:
        """Into the queue."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        unqueued, self._unqueued, self._unqueued_bytes = self._unqueued, {}, 0
        for identity, weight_bytes in unqueued.items():
            if not self._queue.put(identity, weight_bytes):
                self._turns.pop(identity, None)
                self._warn("too much is waiting to be read")

    def note_summary(self, turn: Turn, pivot: Pivot) -> None:
        """A summary that was made of this conversation. Digests have no title."""
        title = find_summary_title(pivot.summary) if may_keep(turn) and not pivot.is_digest else ""
        if title:
            self._queue.put(_SummaryTitle(turn, title), _TITLE_WEIGHT_BYTES)

    def watch(self, turn: Turn) -> Turn:
        """The turn; the reply to a title call will name the session that the call belongs to."""
        if turn.purpose != "title" or not may_keep(turn):
            return turn
        return watch_title_call(turn, lambda reply: self._put(reply, turn.weight_bytes))

    def _put(self, reply: TitleReply, weight_bytes: int) -> None:
        self._queue.put(reply, weight_bytes)

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory, and nothing more is written for it."""
        for identity in [each for each, turn in self._turns.items() if make_tag(turn.owner) == tag]:
            del self._turns[identity]
        self._readings.drop_where(lambda reading: make_tag(reading.session.owner) == tag)
        self._early.drop_where(lambda early: make_tag(early.owner) == tag)
        self._titles.forget(tag)
        self._queue.drop_where(lambda job: _may_concern(job, tag))
        self._forgotten = self._forgotten or self._current[0] == tag

    def forget_conversation(self, tag: str, conversation_id: str) -> None:
        """So are titles of the tenant that wait for their conversation: one may be of this one."""
        self._turns.pop(conversation_id, None)
        self._readings.pop(conversation_id)
        self._early.pop(conversation_id)
        self._titles.forget(tag)
        self._queue.drop_where(lambda job: _may_concern(job, tag, conversation_id))
        self._forgotten = self._forgotten or self._current == (tag, conversation_id)

    # What is asked

    async def load(self, tag: str, conversation_id: str) -> StoredSession | None:
        """With every turn that was noted here before, unless others' reading takes longer than one may wait.

        tag: of the owner, see `store.keys`. Raises StoreError.
        """
        reading = asyncio.ensure_future(self.finish())
        await asyncio.wait((reading,), timeout=_PATIENCE_SECONDS)
        reading.cancel()
        return await self._records.load(tag, conversation_id)

    async def load_titles(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """By conversation. wanted: ids by the tag of their owner.

        A list does not wait for reading: what was noted since begins to be read, and is in the next list.
        """
        self._put_turns()
        return await self._records.load_titles(wanted)

    async def drop_titles(self, tag: str, conversation_id: str) -> None:
        """Those that clients gave a conversation that is about to be deleted. Raises StoreError."""
        session = await self._records.load(tag, conversation_id)
        if session is not None:
            self._titles.drop(session.owner, session.proofs)

    # The background job

    async def _work(self, job: _Job) -> None:
        self._forgotten = False
        try:
            if isinstance(job, TitleReply):
                self._current = make_tag(job.turn.owner), ""
                await self._apply_title_call(job)
            elif isinstance(job, _SummaryTitle):
                self._current = make_tag(job.turn.owner), job.turn.conversation_id
                await self._apply_summary(job)
            elif (turn := self._turns.pop(job, None)) is not None:
                self._current = make_tag(turn.owner), job
                await self._follow(turn)
        except StoreError:
            self._warn("the store cannot be written")
        except RequestRefused:
            self._warn("too much work is waiting")
        finally:
            self._current = ("", "")

    def _is_forgotten(self) -> bool:
        """Whether what the job is about was deleted since it began."""
        return self._forgotten

    async def _follow(self, turn: Turn) -> None:
        known = self._readings.get(turn.conversation_id)
        if known is not None and known.session.owner != turn.owner:
            known = None
        chosen = await self._choose_start(turn, known)
        if chosen is None:
            return
        reading, start, written = chosen
        reading.keep_seconds = choose_seconds(turn, self._keep_seconds)
        # What fails from here on is read again from the beginning.
        self._readings.pop(turn.conversation_id)
        unread = Unread(turn.received, reading.reader, start, written, reading.session, reading.work)
        read = await self._read(turn, unread)
        session = self._describe(turn, reading, read)
        if turn.purpose == "main" and session.title_from != "client":
            asks_store, reading.tries = reading.tries < _TITLE_TRIES, reading.tries + 1
            title = await self._titles.find(turn.owner, session.proofs, asks_store=asks_store)
            session = with_title(session, title, "client")
        if self._is_forgotten():
            return
        self._save(reading, session)
        packed = {position: data for position, data in read.packed.items() if position in session.edits}
        if packed:
            await self.diffs.write(*self._current, packed, reading.keep_seconds)
        if self._is_forgotten():
            await self.diffs.delete(*self._current)

    async def _read(self, turn: Turn, unread: Unread) -> ReadMessages:
        size_bytes = count_bytes(unread)
        if size_bytes <= _INLINE_BYTES and not has_calls(unread):
            return take_all_steps(read_messages(unread))
        return await self._lanes.run_steps(turn.owner, _LANE_BYTES + size_bytes, read_messages(unread))

    def _describe(self, turn: Turn, reading: FollowedSession, read: ReadMessages) -> StoredSession:
        session, reading.work = with_place(read.session, turn.received.conversation), read.work
        if turn.purpose == "main" and not session.proofs:
            session = replace(session, proofs=list_proofs(turn.session, [read.first]))
        if read.work.titles:
            session = with_title(session, read.work.titles[0][1], "message")
        early = self._early.pop(turn.conversation_id)
        if early is not None and early.owner == turn.owner:
            session = with_title(session, early.title, "summary")
        return session

    async def _choose_start(
        self, turn: Turn, known: FollowedSession | None
    ) -> tuple[FollowedSession, int, int] | None:
        """None if all of it was read before."""
        conversation, owner, identity = turn.received.conversation, turn.owner, turn.conversation_id
        if known is not None and has_read(known.session, conversation):
            return None
        if known is not None and continues(conversation, known.session):
            return known, known.session.length, known.session.length
        stored = await self._records.load(make_tag(owner), identity)
        empty = StoredSession(owner=owner, id=identity, link="", length=0, updated_seconds=0.0)
        if stored is None:
            return FollowedSession(empty, SessionReader()), 0, 0
        if stored.length > len(conversation.messages) and has_read(stored, conversation):
            return None
        if not continues(conversation, stored):
            # Another history that begins like this one. Its diffs are not this one's, and are not shown.
            return FollowedSession(empty, SessionReader()), 0, 0
        if conversation.trim is not None or len(turn.received.body.data) > _READ_AGAIN_BYTES:
            reader = SessionReader.restore(make_work(stored))
            return FollowedSession(stored, reader), stored.length, stored.length
        # Read again, because a file that is written anew is compared with what it was.
        named = replace(empty, title=stored.title, title_from=stored.title_from)
        return FollowedSession(named, SessionReader()), 0, stored.length

    async def _apply_summary(self, job: _SummaryTitle) -> None:
        turn = job.turn
        is_named = await self._rename(turn, turn.conversation_id, job.title, "summary")
        if not is_named and not self._is_forgotten():
            early = _EarlyTitle(turn.owner, job.title)
            self._early.put(turn.conversation_id, early, _TITLE_WEIGHT_BYTES)

    async def _apply_title_call(self, reply: TitleReply) -> None:
        """To conversations that were read here. Others find the title when they are."""
        title = read_title(reply)
        if not title.title or not title.proofs:
            return
        self._titles.note(title)
        for reading in self._readings.values():
            session = reading.session
            if session.owner == title.owner and not set(title.proofs).isdisjoint(session.proofs):
                self._save(reading, with_title(session, title.title, "client"))

    async def _rename(self, turn: Turn, identity: str, title: str, source: TitleSource) -> bool:
        """False if there is no record yet."""
        reading = self._readings.peek(identity)
        if reading is not None and reading.session.owner == turn.owner:
            self._save(reading, with_title(reading.session, title, source))
            return True
        stored = await self._records.load(make_tag(turn.owner), identity)
        if stored is None or self._is_forgotten():
            return stored is not None
        renamed = with_title(stored, title, source)
        if renamed is not stored:
            self._records.write(renamed, choose_seconds(turn, self._keep_seconds))
        return True

    # The store

    def _save(self, reading: FollowedSession, session: StoredSession) -> None:
        """Written if it says something new, and once a day."""
        before, now = reading.stored, self._clock()
        reading.session = session
        if before is None or says_more(session, before) or now - before.updated_seconds > DAY_SECONDS:
            reading.session = reading.stored = replace(session, updated_seconds=now)
            self._records.write(reading.session, reading.keep_seconds)
        self._readings.put(session.id, reading, reading.weight_bytes)

    def _warn(self, why: str) -> None:
        if why not in self._warned:
            log.warning("sessions are not followed: %s; further cases are not logged", why)
        self._warned.add(why)


def _may_concern(job: _Job, tag: str, conversation_id: str = "") -> bool:
    """Whether a job's title may be one of this conversation, or of any of the tenant's if the id is empty."""
    if not isinstance(job, (_SummaryTitle, TitleReply)) or make_tag(job.turn.owner) != tag:
        return False
    is_of_any = isinstance(job, TitleReply) or not conversation_id
    return is_of_any or job.turn.conversation_id == conversation_id
