"""Folds a part of a history: summary -> checks -> pivot, or a digest where no summary is to be had.

Nothing that failed its checks is stored; a pivot is durable before anybody may use it. Who fails three times
in a row is left alone for a while.
"""

import time

from gateway.core.breaker import Breaker
from gateway.core.cut import Cut
from gateway.core.pivot import Pivot
from gateway.core.plan import Situation
from gateway.core.summary import Rejected
from gateway.digester import Digester
from gateway.journal import Journal
from gateway.lru import Lru
from gateway.planner import Planner
from gateway.state import State
from gateway.store import StoreError
from gateway.summariser import Summariser
from gateway.turn import Turn

_BREAKERS_BYTES = 1 << 18
_BREAKER_WEIGHT_BYTES = 256


class Folding:
    def __init__(
        self, state: State, planner: Planner, summariser: Summariser, digester: Digester, journal: Journal
    ) -> None:
        self._state = state
        self._planner = planner
        self._summariser = summariser
        self._digester = digester
        self._journal = journal
        self._breakers: Lru[tuple[str, str], Breaker] = Lru(_BREAKERS_BYTES)

    async def summarise(self, turn: Turn, cut: Cut, reason: str) -> bool:
        """Summary -> checks -> pivot. False, and one log line, where any of it fails."""
        started = time.monotonic()
        if not self.may_ask(turn):
            return False
        self._set_breaker(turn, self._breaker(turn).with_attempt(started))
        situation = await self._planner.gather(turn, may_compact=True)
        made = await self._make(turn, cut, situation)
        if isinstance(made, Pivot):
            made = await self._save(made)
        self._note(turn, made)
        self._journal.note_compaction(turn, cut, made, reason, time.monotonic() - started)
        return isinstance(made, Pivot)

    async def _make(self, turn: Turn, cut: Cut, situation: Situation) -> Pivot | Rejected:
        match turn.policy.summary.method:
            case "model":
                return await self._summariser.summarise(turn, cut, situation)
            case "digest":
                return await self._digester.digest(turn, cut, situation)
            case "drop":
                return await self._digester.drop(turn, cut, situation)

    async def digest(self, turn: Turn, cut: Cut) -> bool:
        """Never over a summary of the same messages that came in meanwhile."""
        started = time.monotonic()
        known = self._state.read_pivot(turn.received.conversation.chain[cut.covers].hex())
        if known is not None and not known.is_digest:
            return True
        situation = await self._planner.gather(turn, may_compact=False)
        made = await self._save(await self._digester.digest(turn, cut, situation))
        self._journal.note_compaction(turn, cut, made, "digest", time.monotonic() - started)
        return isinstance(made, Pivot)

    async def _save(self, pivot: Pivot) -> Pivot | Rejected:
        try:
            await self._state.save_pivot(pivot)
        except StoreError:
            return Rejected("store", is_summarisers=False)
        return pivot

    def may_ask(self, turn: Turn) -> bool:
        """Not while this tenant's summariser has failed too often in a row. Where none is asked: always."""
        return turn.policy.summary.method != "model" or self._breaker(turn).allows(time.monotonic())

    def _note(self, turn: Turn, made: Pivot | Rejected) -> None:
        if isinstance(made, Pivot):
            self._set_breaker(turn, Breaker())
        elif made.is_summarisers:
            self._set_breaker(turn, self._breaker(turn).with_failure(time.monotonic()))

    def _breaker(self, turn: Turn) -> Breaker:
        return self._breakers.get((turn.owner, turn.upstream.name)) or Breaker()

    def _set_breaker(self, turn: Turn, breaker: Breaker) -> None:
        self._breakers.put((turn.owner, turn.upstream.name), breaker, _BREAKER_WEIGHT_BYTES)
