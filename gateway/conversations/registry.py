"""Which conversations were seen since the start, the newest first; for operators.

Bounded, in memory only. Holds callers' keys, inside the newest turns, like every request that is under way.
"""

import time
from typing import Final

import msgspec

from gateway.conversations.turn import Turn
from gateway.core.history.head import Head
from gateway.core.history.purpose import Purpose
from gateway.lru import Lru

# Some two thousand conversations.
_SIGHTINGS_BYTES: Final = 2 << 20
_SIGHTING_WEIGHT_BYTES: Final = 1_000


class ConversationRecord(msgspec.Struct, frozen=True):
    """The newest answered request of one conversation. tenant: as operators see it. session: as the client
    calls it.
    """

    tenant: str
    session: str | None
    purpose: Purpose
    model: str
    upstream: str
    head: Head
    seen_seconds: float


class _Newest(msgspec.Struct, frozen=True):
    """head: what was recorded of the turn's answer."""

    turn: Turn
    head: Head
    seen_seconds: float


class Registry:
    def __init__(self, bodies_bytes: int, most_bodies: int) -> None:
        """Bounds of the turns that are kept whole; mostly the bodies that recognition keeps anyway."""
        self._newest: Lru[str, _Newest] = Lru(bodies_bytes, most_bodies)
        # Those whose body had to make room.
        self._earlier: Lru[str, ConversationRecord] = Lru(_SIGHTINGS_BYTES)

    def note(self, turn: Turn, head: Head) -> None:
        """After an answer. Hot: what operators see is made when they look."""
        received = turn.received
        weight = len(received.body.data) + received.facts_bytes
        for gone in self._newest.put(turn.conversation_id, _Newest(turn, head, time.time()), weight):
            self._earlier.put(gone.turn.conversation_id, _make_sighting(gone), _SIGHTING_WEIGHT_BYTES)

    def list(self, tenant: str | None, most: int) -> list[ConversationRecord]:
        """The newest first; of one tenant, or of all."""
        seen = {sighting.head.conversation: sighting for sighting in self._earlier.values()}
        seen |= {newest.turn.conversation_id: _make_sighting(newest) for newest in self._newest.values()}
        found = [sighting for sighting in seen.values() if tenant in (None, sighting.tenant)]
        return sorted(found, key=lambda sighting: sighting.seen_seconds, reverse=True)[:most]

    def read(self, conversation: str) -> ConversationRecord | None:
        newest = self._newest.peek(conversation)
        return _make_sighting(newest) if newest is not None else self._earlier.peek(conversation)

    def read_turn(self, conversation: str) -> Turn | None:
        """None where its body was too large to keep, or others took its place."""
        newest = self._newest.peek(conversation)
        return newest.turn if newest is not None else None


def _make_sighting(newest: _Newest) -> ConversationRecord:
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
