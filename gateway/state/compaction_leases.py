"""Leases on compactions: which process makes the summary of a chain, or carries out what a person asked for.

A lease is kept for some seconds and renewed while the work goes on. A leader whose summary failed leaves a
note, so that those who waited for it do not make the same call again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.state.record_cache import Storage
from gateway.state.records import FailedCompaction, parse_record, render_record
from gateway.store.keys import make_key, make_tag
from gateway.store.leases import Held, Lease

_KIND: Final = "lease"
_FAILURE_KIND: Final = "failure"
# Those who wait for a leader look at once when it is done.
_FAILURE_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class LeaseTimes:
    """keep_seconds: so long after a leader's death another one takes over. renew_seconds: while it works."""

    keep_seconds: float = 6.0
    renew_seconds: float = 2.0


class CompactionLeases:
    def __init__(self, storage: Storage, times: LeaseTimes) -> None:
        self.times = times
        self._store = storage.store

    async def claim(self, owner: str, key: str, rivals: Sequence[str] = ()) -> Lease | Held:
        """key, rivals: of cuts, or of something else that is done once."""
        tag = make_tag(owner)
        names = [make_key(tag, _KIND, rival) for rival in rivals]
        return await self._store.leases.claim(
            make_key(tag, _KIND, key), names, keep_seconds=self.times.keep_seconds
        )

    async def renew(self, lease: Lease) -> bool:
        """False if it was lost."""
        return await self._store.leases.renew(lease, keep_seconds=self.times.keep_seconds)

    async def release(self, lease: Lease) -> None:
        """Wakes those who wait for it."""
        await self._store.leases.release(lease)

    async def wait(self, held: Held) -> None:
        """Until it is released or its time is over, unless it was renewed."""
        await self._store.leases.wait(held)

    async def note_failure(self, owner: str, lease: Lease, reason: str) -> None:
        """Raises StoreError."""
        record = FailedCompaction(owner=owner, lease=lease.key, fence=lease.fence, reason=reason)
        await self._store.leases.write(
            lease, _name_failure(lease), render_record(owner, record), keep_seconds=_FAILURE_SECONDS
        )

    async def find_failure(self, owner: str, held: Held) -> str | None:
        """Why the holder made no pivot; None if it says nothing, because it has stopped or still works."""
        data = await self._store.read(_name_failure(held))
        record = parse_record(FailedCompaction, owner, data) if data is not None else None
        if record is None or (record.lease, record.fence) != (held.key, held.fence):
            return None
        return record.reason


def _name_failure(lease: Lease | Held) -> str:
    """Beside the lease: it has the same tag."""
    return f"{_FAILURE_KIND}{lease.key.removeprefix(_KIND)}"
