"""Which conversations were seen since the start, the newest first; for operators.

Bounded, in memory only. Holds callers' keys, inside the newest turns, like every request that is under way.
"""

import time
from typing import Final

import msgspec

from gateway.core.head import Head
from gateway.core.purpose import Purpose
from gateway.lru import Lru
from gateway.turn import Turn

# Some two thousand conversations.
_SIGHTINGS_BYTES: Final = 2 << 20
_SIGHTING_WEIGHT_BYTES: Final = 1_000


class Sighting(msgspec.Struct, frozen=True):
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


class Roster:
    def __init__(self, bodies_bytes: int, most_bodies: int) -> None:
        """Bounds of the turns that are kept whole; mostly the bodies that recognition keeps anyway."""
        self._sightings: Lru[str, Sighting] = Lru(_SIGHTINGS_BYTES)
        self._turns: Lru[str, Turn] = Lru(bodies_bytes, most_bodies)

    def note(self, turn: Turn, head: Head) -> None:
        """After an answer. head: what was recorded of it."""
        seen = Sighting(
            tenant=turn.tenant.shown,
            session=turn.session,
            purpose=turn.purpose,
            model=turn.model,
            upstream=turn.upstream.name,
            head=head,
            seen_seconds=time.time(),
        )
        self._sightings.put(turn.conversation, seen, _SIGHTING_WEIGHT_BYTES)
        received = turn.received
        self._turns.put(turn.conversation, turn, len(received.body.data) + received.facts_bytes)

    def list(self, tenant: str | None, most: int) -> list[Sighting]:
        """The newest first; of one tenant, or of all."""
        found: list[Sighting] = []
        for sighting in reversed(self._sightings.values()):
            if tenant in (None, sighting.tenant):
                found.append(sighting)
            if len(found) == most:
                break
        return found

    def read(self, conversation: str) -> Sighting | None:
        return self._sightings.peek(conversation)

    def read_turn(self, conversation: str) -> Turn | None:
        """None where its body was too large to keep, or others took its place."""
        return self._turns.peek(conversation)
