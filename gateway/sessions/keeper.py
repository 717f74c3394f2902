"""Keeps a record of what each conversation did. It is the only writer of these records.

A session is a function of its history, so what was read is not remembered, and every process makes the same
of it. A history is read from its beginning in the background: a while after its conversation went quiet, when
somebody looks, when a client drops a part of it, and when too many wait. Only where messages are no longer
sent it goes on from the record.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.bounds.background import WorkQueue
from gateway.bounds.lanes import Lanes, Steps
from gateway.conversations.turn import Turn, chain
from gateway.core.errors import RequestRefused
from gateway.core.history.pivot import Pivot, is_on_chain
from gateway.core.session.reader import SessionReader
from gateway.core.session.work import NOTHING_DONE, FileChange, SessionWork
from gateway.sessions.record import StoredSession, pack_changes, unpack_changes, with_title
from gateway.sessions.titles import (
    TitleListener,
    clean_title,
    find_first_asked,
    find_summary_title,
    list_proofs,
    list_proofs_of_title_call,
)
from gateway.state.memory import Memory
from gateway.state.records import Kind, Records
from gateway.store.interface import LATEST, Store, StoreError
from gateway.store.keys import make_tag

DAY_SECONDS: Final = 86_400
# A conversation without a new request for so long is quiet. One that never is, is read after the other time.
_QUIET_SECONDS: Final = 30.0
_BUSY_SECONDS: Final = 600.0
# Those who look at one session wait for its newest turn, but not for long.
_PATIENCE_SECONDS: Final = 5.0
# No client waits for what is read here, so it stays out of the threads for small work.
_LANE_BYTES: Final = 5 << 20

# Links by which a request is known that is sent once more, and how much of each is kept.
_KNOWN_ENDS: Final = 32
_END_DIGITS: Final = 16
# What the requests of a session are for. Others say nothing of its work.
_FOLLOWED: Final = ("main", "agent")

log = logging.getLogger("gateway.sessions")


class _HeldTurn(NamedTuple):
    """The newest turn of a conversation, not yet read. since: when the first one was noted that was not read.
    title: of a summary.
    """

    turn: Turn
    weight_bytes: int
    noted: float
    since: float
    title: str = ""


class _Read(NamedTuple):
    """changes: see `record.pack_changes`."""

    work: SessionWork
    changes: bytes


class SessionKeeper:
    """keep_seconds: unless the policy says otherwise. max_bytes: of bodies that wait to be read. clock:
    seconds since 1970. tag: of an owner, see `store.keys`. What is loaded raises StoreError.
    """

    def __init__(
        self,
        store: Store,
        memory: Memory,
        lanes: Lanes,
        keep_seconds: float,
        max_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._memory = memory
        self._lanes = lanes
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._sessions = Records(store, Kind(name="session", type=StoredSession, keep_seconds=keep_seconds))
        self._changes = Records(store, Kind(name="diffs", type=bytes, keep_seconds=keep_seconds))
        # Those that clients asked a model for, by what proves whose they are. Any process may serve the call.
        self._titles = Records(store, Kind(name="title", type=str, keep_seconds=keep_seconds))
        # By conversation; the one with the oldest request first.
        self._held: dict[str, _HeldTurn] = {}
        self._held_bytes = 0
        self._most_held_bytes = max_bytes // 2
        self._timer: asyncio.TimerHandle | None = None
        self._queue: WorkQueue[_HeldTurn] = WorkQueue(self._work, max_bytes // 2)
        self._warned: set[str] = set()

    @property
    def waiting_bytes(self) -> int:
        """What waits to be read."""
        return self._queue.waiting_bytes + self._held_bytes

    async def finish(self) -> None:
        """Returns once what was noted by now is with the store. More may be noted meanwhile."""
        self._read_soon(list(self._held))
        await self._queue.finish()

    # What happens. These are plain calls.

    def note_request(self, turn: Turn, title: str = "") -> None:
        """An answered request. title: of a summary of its conversation."""
        policy, identity = turn.policy, turn.conversation_id
        # A summary of a session quotes its texts, so none is kept where originals are not.
        if turn.purpose not in _FOLLOWED or not policy.session_summary or not policy.originals.keep:
            return
        if turn.received.conversation.trim is not None:
            self._read_what_goes(turn)
        now, weight = self._clock(), turn.weight_bytes
        before, since = self._held.pop(identity, None), now
        if before is not None:
            self._held_bytes -= before.weight_bytes
            title, since = before.title or title, before.since
        self._held[identity] = _HeldTurn(turn, weight, now, since, title)
        self._held_bytes += weight
        while self._held_bytes > self._most_held_bytes and len(self._held) > 1:
            self._read_soon([next(iter(self._held))])
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._read_quiet)

    def note_summary(self, turn: Turn, pivot: Pivot) -> None:
        """A summary that was made of this conversation. Digests have no title."""
        title = find_summary_title(pivot.summary) if not pivot.is_digest else ""
        if title:
            held = self._held.get(turn.conversation_id)
            self.note_request(held.turn if held is not None else turn, title)

    def _read_what_goes(self, turn: Turn) -> None:
        """Messages of the request before it that the client no longer sends."""
        held = self._held.get(turn.conversation_id)
        if held is not None and _count_gone(turn) > _count_gone(held.turn):
            self._read_soon([turn.conversation_id])

    def watch(self, turn: Turn) -> Turn:
        """A title call; the reply to it will name the session that the call belongs to."""
        if not turn.policy.session_summary or not turn.policy.originals.keep:
            return turn
        listener = TitleListener(lambda reply: self._note_title(turn, clean_title(reply)))
        return replace(turn, on_event=chain(turn.on_event, listener.note))

    def _note_title(self, turn: Turn, title: str) -> None:
        """What is deleted of this tenant meanwhile may be the conversation that it names."""
        if title and not self._memory.was_purged(turn.purges, make_tag(turn.owner)):
            for proof in list_proofs_of_title_call(turn):
                seconds = turn.policy.originals.find_seconds(self._keep_seconds)
                self._titles.put(turn.owner, proof, title, keep_seconds=seconds)

    def forget(self, tag: str, conversation_id: str | None = None) -> None:
        """All of a tenant, or of one conversation, leaves memory, and nothing more is written for it."""
        for held in [each for each in self._held.values() if _is_of(each, tag, conversation_id)]:
            self._held_bytes -= self._held.pop(held.turn.conversation_id).weight_bytes
        self._queue.drop_where(lambda held: _is_of(held, tag, conversation_id))

    def _read_quiet(self) -> None:
        now, self._timer = self._clock(), None
        self._read_soon(
            [
                identity
                for identity, held in self._held.items()
                if now - held.noted >= _QUIET_SECONDS or now - held.since >= _BUSY_SECONDS
            ]
        )
        if self._held:
            self._timer = asyncio.get_running_loop().call_later(_QUIET_SECONDS, self._read_quiet)

    def _read_soon(self, identities: Sequence[str]) -> None:
        for identity in identities:
            held = self._held.pop(identity, None)
            if held is None:
                continue
            self._held_bytes -= held.weight_bytes
            if not self._queue.put(held, held.weight_bytes):
                self._warn("too much is waiting to be read")

    # What is asked

    async def load(self, tag: str, conversation_id: str) -> StoredSession | None:
        """With every turn that was noted here before, unless reading takes longer than one may wait."""
        self._read_soon([conversation_id])
        await self._queue.finish(_PATIENCE_SECONDS)
        sessions = await self._load_each(tag, [conversation_id])
        return (await self._with_own_titles(tag, sessions)).get(conversation_id)

    async def load_titles(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """By conversation. wanted: ids by the tag of their owner.

        A list does not wait for reading: what was noted since begins to be read, and is in the next list.
        """
        titles: dict[str, str] = {}
        for tag, ids in wanted.items():
            self._read_soon(ids)
            sessions = await self._with_own_titles(tag, await self._load_each(tag, ids))
            titles |= {identity: session.title for identity, session in sessions.items() if session.title}
        return titles

    async def load_changes(self, tag: str, conversation_id: str) -> Sequence[FileChange]:
        """With their diffs, in the order of the messages. See `load`, which waits for the newest ones."""
        lookup = self._changes.lookup((conversation_id,))
        stored = self._changes.parse((await self._store.get(tag, [lookup], wait=LATEST))[0])
        return await asyncio.to_thread(unpack_changes, stored.record) if stored is not None else ()

    async def drop_titles(self, tag: str, conversation_id: str) -> None:
        """Those that clients gave a conversation that is about to be deleted: they are not kept with it."""
        # Its record has the proofs, once it is read.
        self._read_soon([conversation_id])
        await self._queue.finish(_PATIENCE_SECONDS)
        for session in (await self._load_each(tag, [conversation_id])).values():
            for proof in session.proofs:
                self._titles.drop(session.owner, proof)

    async def _load_each(self, tag: str, ids: Sequence[str]) -> dict[str, StoredSession]:
        """By conversation."""
        lookups = [self._sessions.lookup((identity,)) for identity in ids]
        found = map(self._sessions.parse, await self._store.get(tag, lookups, wait=LATEST))
        return {stored.name: stored.record for stored in found if stored is not None}

    async def _with_own_titles(
        self, tag: str, sessions: Mapping[str, StoredSession]
    ) -> dict[str, StoredSession]:
        """With the titles that clients gave them."""
        named = dict(sessions)
        lookups = {each: self._titles.lookup(known.proofs) for each, known in named.items() if known.proofs}
        found = await self._store.get(tag, [*lookups.values()], wait=LATEST) if lookups else ()
        for identity, title in zip(lookups, map(self._titles.parse, found), strict=True):
            if title is not None:
                named[identity] = with_title(named[identity], title.record, "client")
        return named

    # The background job

    async def _work(self, held: _HeldTurn) -> None:
        try:
            await self._follow(held)
        except StoreError:
            self._warn("the store cannot be written")
        except RequestRefused:
            self._warn("too much work is waiting")

    async def _follow(self, held: _HeldTurn) -> None:
        turn, tag = held.turn, make_tag(held.turn.owner)
        stored = (await self._load_each(tag, [turn.conversation_id])).get(turn.conversation_id)
        # The record may be of this history, or of one that goes on after it.
        if stored is not None and turn.received.conversation.key.hex()[:_END_DIGITS] in stored.ends:
            session, changes = stored, b""
        else:
            session, changes = await self._read(turn, tag, stored)
        session = with_title(session, held.title, "summary")
        if turn.purpose == "main":
            session = (await self._with_own_titles(tag, {session.id: session}))[session.id]
        if not self._memory.was_purged(turn.purges, tag, turn.conversation_id):
            self._write(turn, session, stored, changes)

    async def _read(self, turn: Turn, tag: str, stored: StoredSession | None) -> tuple[StoredSession, bytes]:
        conversation = turn.received.conversation
        if stored is not None and not is_on_chain(conversation, stored.link, stored.length):
            # Another history that begins like this one.
            stored = None
        before, start = NOTHING_DONE, 0
        if stored is not None and conversation.trim is not None:
            changes = tuple(await self.load_changes(tag, stored.id))
            before, start = dataclasses.replace(stored.work, changes=changes), stored.length
        weight = _LANE_BYTES + len(turn.received.body.data)
        read = await self._lanes.run_steps(turn.owner, weight, _read_messages(turn, before, start))
        proofs = stored.proofs if stored is not None else ()
        if turn.purpose == "main" and not proofs:
            # A long message is not read in the event loop.
            first = await self._lanes.run(turn.owner, weight, find_first_asked, turn.received)
            proofs = list_proofs(turn.session, [first])
        session = StoredSession(
            owner=turn.owner,
            id=turn.conversation_id,
            link=conversation.key.hex(),
            length=len(conversation.messages),
            ends=tuple(link.hex()[:_END_DIGITS] for link in conversation.chain[-_KNOWN_ENDS:]),
            updated_seconds=stored.updated_seconds if stored is not None else 0.0,
            proofs=proofs,
            title=stored.title if stored is not None else "",
            title_from=stored.title_from if stored is not None else None,
            work=read.work,
        )
        title = read.work.titles[0][1] if read.work.titles else ""
        return with_title(session, title, "message"), read.changes

    def _write(
        self, turn: Turn, session: StoredSession, stored: StoredSession | None, changes: bytes
    ) -> None:
        """If it says something new, and once a day."""
        now, seconds = self._clock(), turn.policy.originals.find_seconds(self._keep_seconds)
        is_due = stored is None or now - stored.updated_seconds > DAY_SECONDS
        says_more = stored is None or stored != replace(
            session,
            link=stored.link,
            length=stored.length,
            ends=stored.ends,
            updated_seconds=stored.updated_seconds,
        )
        if says_more or is_due:
            session = replace(session, updated_seconds=now)
            self._sessions.put(turn.owner, session.id, session, group=session.id, keep_seconds=seconds)
        known = stored.work.files if stored is not None else ()
        if changes and (is_due or session.work.files != known):
            self._changes.put(turn.owner, session.id, changes, group=session.id, keep_seconds=seconds)

    def _warn(self, why: str) -> None:
        if why not in self._warned:
            log.warning("sessions are not followed: %s; further cases are not logged", why)
        self._warned.add(why)


def _is_of(held: _HeldTurn, tag: str, conversation_id: str | None) -> bool:
    return make_tag(held.turn.owner) == tag and conversation_id in (None, held.turn.conversation_id)


def _count_gone(turn: Turn) -> int:
    """Messages that the client no longer sends."""
    conversation = turn.received.conversation
    trim = conversation.trim
    return len(conversation.messages) - len(trim.positions) if trim is not None else 0


def _read_messages(turn: Turn, before: SessionWork, start: int) -> Steps[_Read]:
    """Messages that are gone, or cannot be read, are left out."""
    received, reader = turn.received, SessionReader(before)
    messages = received.conversation.messages
    for position in range(start, len(messages)):
        if not received.conversation.is_gone(position):
            reader.feed(position, messages[position], received.entry(position))
            yield
    work = reader.work()
    return _Read(dataclasses.replace(work, changes=()), pack_changes(work.changes))
