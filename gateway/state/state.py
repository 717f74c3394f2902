"""The four repositories of what is known about conversations.

Records are held in memory, decoded, in front of a store. The compactor is their only writer, except that the
limits book writes learned limits. Keys are chains, which begin with the tenant, or hashes of the tenant and
more; the owner inside each record is checked when it is read.
"""

from dataclasses import dataclass

from gateway.state.calibrations import Calibrations
from gateway.state.heads import Heads
from gateway.state.pivots import Pivots
from gateway.state.record_cache import Storage
from gateway.state.tasks import Tasks


@dataclass(frozen=True, kw_only=True)
class State:
    heads: Heads
    pivots: Pivots
    tasks: Tasks
    calibrations: Calibrations


def make_state(storage: Storage) -> State:
    heads = Heads(storage)
    return State(
        heads=heads,
        pivots=Pivots(storage, heads),
        tasks=Tasks(storage, heads),
        calibrations=Calibrations(storage),
    )
