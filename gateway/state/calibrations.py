"""What upstream's counts and refusals have taught: calibrations and learned limits, for each tenant."""

import hashlib
from collections.abc import Sequence
from typing import Final

from gateway.core.limits.learned import Learned
from gateway.core.sizing.estimate import Calibration, Meter
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.state.record_cache import RecordCache, Storage

LEARNED_PREFIX: Final = "learned"
# Room for some thousand keys.
_KEYS_BYTES: Final = 1 << 20
_KEY_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 350


class Calibrations:
    def __init__(self, storage: Storage) -> None:
        self._calibrations = RecordCache(Calibration, "calibration", storage)
        self._learned = RecordCache(Learned, LEARNED_PREFIX, storage)
        # Keys by the names that they stand for. Making a key takes longer than finding a record by it.
        self._keys: Lru[tuple[str, ...], str] = Lru(_KEYS_BYTES)

    def find(self, owner: str, meter: Meter) -> Calibration:
        """In memory alone; the default if it has none."""
        return self._calibrations.find(self._choose_key(owner, *meter)) or Calibration()

    async def load(self, owner: str, meter: Meter) -> Calibration:
        """Asks the store once; the default if it has none."""
        key = self._choose_key(owner, *meter)
        known = await self._calibrations.load(owner, key)
        if known is None:
            known = Calibration()
            self._calibrations.hold(key, known)
        return known

    def save(self, owner: str, meter: Meter, calibration: Calibration) -> None:
        self._calibrations.save(owner, self._choose_key(owner, *meter), calibration)

    def find_learned(self, owner: str, upstream: str, model: str) -> Learned:
        """In memory alone; empty if it has none."""
        return self._learned.find(self._choose_key(owner, upstream, model)) or Learned(owner=owner)

    async def load_learned(self, owner: str, upstream: str, model: str) -> Learned:
        """Asks the store once; empty if it has none."""
        key = self._choose_key(owner, upstream, model)
        known = await self._learned.load(owner, key)
        if known is None:
            known = Learned(owner=owner)
            self._learned.hold(key, known)
        return known

    def save_learned(self, upstream: str, model: str, learned: Learned) -> None:
        self._learned.save(learned.owner, self._choose_key(learned.owner, upstream, model), learned)

    def _choose_key(self, *names: str) -> str:
        key = self._keys.get(names)
        if key is None:
            key = _make_key(names)
            self._keys.put(names, key, _KEY_WEIGHT_BYTES + weigh_texts(*names))
        return key


def _make_key(names: Sequence[str]) -> str:
    """Names are not bounded and may hold any character, so the key is a hash of them."""
    state = hashlib.sha256()
    for name in names:
        encoded = name.encode()
        state.update(b"%d:%s" % (len(encoded), encoded))
    return state.hexdigest()
