"""What upstream's counts and refusals have taught: calibrations and learned limits, for each tenant."""

from typing import Final

from gateway.core.limits.model_limits import Learned
from gateway.core.sizing.estimate import Calibration, Meter
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.state.cached import Cached, Storage
from gateway.state.news import StateNews
from gateway.state.owned_names import make_name_key
from gateway.state.trip import Trip
from gateway.store.interface import SOON

# Room for some thousand keys.
_KEYS_BYTES: Final = 1 << 20
_KEY_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 350


class Calibrations:
    """Of several processes each learns by its own responses, and is told what the others have learned."""

    def __init__(self, storage: Storage, news: StateNews) -> None:
        self._news = news
        self._storage = storage
        self._calibrations = Cached(storage, storage.records.calibrations)
        self._learned = Cached(storage, storage.records.learned)
        # Grows with each limit that another process has learned.
        self.learned_elsewhere = 0
        # Keys by the names that they stand for. Making a key takes longer than finding a record by it.
        self._keys: Lru[tuple[str, ...], str] = Lru(_KEYS_BYTES)
        news.listen("calibration", lambda _, key: self._calibrations.outdate(key))
        news.listen("learned", self._note_learned)
        news.listen("purge", lambda *_: self._note_purged())

    def find(self, owner: str, meter: Meter) -> Calibration:
        """In memory alone; the default if it has none."""
        return self._calibrations.find(self._choose_key(owner, *meter)) or Calibration()

    async def load(self, owner: str, meter: Meter) -> Calibration:
        """Asks the store once, and again when another process has begun to calibrate; the default if none
        has.
        """
        key = self._choose_key(owner, *meter)
        if self._calibrations.is_missing(key):
            await self._calibrations.load(owner, (key,), SOON)
        return self._calibrations.find(key) or Calibration()

    def save(self, owner: str, meter: Meter, calibration: Calibration) -> None:
        """Others are told until it has settled. From then on their own is as good."""
        key = self._choose_key(owner, *meter)
        was_settled = self.find(owner, meter).is_settled
        self._calibrations.save(owner, key, calibration)
        if not was_settled:
            self._news.announce_record("calibration", owner, key)

    def find_learned(self, owner: str, upstream: str, model: str) -> Learned:
        """In memory alone; empty if it has none."""
        return self._learned.find(self._choose_key(owner, upstream, model)) or Learned(owner=owner)

    async def load_learned(self, owner: str, upstream: str, model: str) -> Learned:
        """Asks the store once, and again when another process has learned something; empty if it has none."""
        key = self._choose_key(owner, upstream, model)
        if self._learned.is_missing(key):
            await self._learned.load(owner, (key,), SOON)
        return self._learned.find(key) or Learned(owner=owner)

    def ask(self, trip: Trip, owner: str, meter: Meter, model: str) -> None:
        """For what `load` and `load_learned` would ask the store for. model: as its limits are learned."""
        self._calibrations.ask_missing(trip, owner, (self._choose_key(owner, *meter),))
        self._learned.ask_missing(trip, owner, (self._choose_key(owner, meter.upstream, model),))

    def save_learned(self, upstream: str, model: str, learned: Learned) -> None:
        """Other processes are told: what the upstream has refused once need not be refused again."""
        key = self._choose_key(learned.owner, upstream, model)
        self._learned.save(learned.owner, key, learned)
        self._news.announce_record("learned", learned.owner, key)

    def _note_learned(self, _: str, key: str) -> None:
        self._learned.outdate(key)
        self.learned_elsewhere += 1

    def _note_purged(self) -> None:
        self._keys = Lru(_KEYS_BYTES)
        self.learned_elsewhere += 1

    def _choose_key(self, *names: str) -> str:
        """The first name is the owner: no key is that of another tenant."""
        key = self._keys.get(names)
        if key is None:
            key = make_name_key(*names)
            self._keys.put(names, key, _KEY_WEIGHT_BYTES + weigh_texts(*names))
        return key
