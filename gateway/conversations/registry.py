"""The conversations seen since the start, for operators.

Bounded, and in memory only: the newest turns hold callers' keys, as open requests do.
"""

import time
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.head import Head
from gateway.core.history.purpose import Purpose
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.store.keys import make_tag

# Room for some two thousand conversations.
_RECORDS_BYTES: Final = 2 << 20
# A head and a record, and the texts of both that are always short.
_RECORD_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 1_200


class ConversationRecord(msgspec.Struct, frozen=True):
    """The newest answered request of one conversation."""

    # The tenant's name as operators see it.
    tenant: str
    # The client's name for its session.
    session: str | None
    purpose: Purpose
    model: str
    upstream: str
    head: Head
    seen_seconds: float


class NewestRequest(msgspec.Struct, frozen=True):
    """The newest answered request with its body, and what was sent instead of it."""

    turn: Turn
    plan: Plan
    # What was recorded of the turn's response.
    head: Head
    seen_seconds: float


class SettingsTime:
    """From one reload of the settings to the next one. Compared by identity."""


class Registry:
    def __init__(self, bodies_bytes: int, max_bodies: int, clock: Callable[[], float] = time.time) -> None:
        """The bounds are those of turns kept whole; most of their bodies are also kept by the recognizer."""
        self._newest: Lru[str, NewestRequest] = Lru(bodies_bytes, max_bodies)
        # Records of conversations whose turn had to make room.
        self._records: Lru[str, ConversationRecord] = Lru(_RECORDS_BYTES)
        self._clock = clock
        self._time = SettingsTime()

    @property
    def time(self) -> SettingsTime:
        """That of the settings that hold now."""
        return self._time

    def record(self, turn: Turn, plan: Plan, head: Head, time: SettingsTime) -> None:
        """Called after each response. The record for operators is made only when they look.

        time: of the settings that the request began with. Of a request that ends after a reload no turn is
        kept: it has their upstream and a credential that may not hold any more.
        """
        if turn.on_event is not None:
            # It holds what it has collected of the response.
            turn = replace(turn, on_event=None, note_sent=None)
        newest = NewestRequest(turn, plan, head, self._clock())
        if time is not self._time:
            self._keep_record(newest)
            return
        for gone in self._newest.put(turn.conversation_id, newest, turn.weight_bytes):
            self._keep_record(gone)

    def list(self, tenant: str | None, most: int) -> list[ConversationRecord]:
        """The newest first; of one tenant, or of all."""
        records = {record.head.conversation: record for record in self._records.values()}
        records |= {newest.turn.conversation_id: _make_record(newest) for newest in self._newest.values()}
        found = [record for record in records.values() if tenant in (None, record.tenant)]
        return sorted(found, key=lambda record: record.seen_seconds, reverse=True)[:most]

    def find(self, conversation_id: str) -> ConversationRecord | None:
        newest = self._newest.peek(conversation_id)
        return _make_record(newest) if newest is not None else self._records.peek(conversation_id)

    def find_turn(self, conversation_id: str) -> Turn | None:
        """None if the body is too large to keep, or had to make room for others."""
        newest = self._newest.peek(conversation_id)
        return newest.turn if newest is not None else None

    def find_newest(self, conversation_id: str) -> NewestRequest | None:
        """None where `find_turn` gives None."""
        return self._newest.peek(conversation_id)

    def forget_turns(self) -> None:
        """Their settings and credentials do not hold any more. The conversations stay listed."""
        self._time = SettingsTime()
        for newest in self._newest.values():
            self._keep_record(newest)
        for conversation_id in list(self._newest):
            self._newest.pop(conversation_id)

    def _keep_record(self, newest: NewestRequest) -> None:
        record = _make_record(newest)
        self._records.put(newest.turn.conversation_id, record, _weigh(record))

    def forget_conversation(self, conversation_id: str) -> None:
        self._newest.pop(conversation_id)
        self._records.pop(conversation_id)

    def forget(self, tag: str) -> None:
        """All of a tenant."""
        newest = [each for each in self._newest.values() if make_tag(each.turn.owner) == tag]
        for each in newest:
            self._newest.pop(each.turn.conversation_id)
        self._records.drop_where(lambda record: make_tag(record.head.owner) == tag)


def _weigh(record: ConversationRecord) -> int:
    """Clients choose the names of the model and the session."""
    return _RECORD_WEIGHT_BYTES + weigh_texts(record.tenant, record.session, record.model)


def _make_record(newest: NewestRequest) -> ConversationRecord:
    turn = newest.turn
    return ConversationRecord(
        tenant=turn.tenant.display_name,
        session=turn.session,
        purpose=turn.purpose,
        model=turn.model,
        upstream=turn.upstream.name,
        head=newest.head,
        seen_seconds=newest.seen_seconds,
    )
