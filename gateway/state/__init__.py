"""What is known about conversations, in five repositories. Knows no wire format.

Records are held in memory, decoded, in front of a store. The compaction package writes them, with four
exceptions: `planning.learning` saves calibrations, the limits book learned limits, `pipeline.name_guard`
names that an upstream gave, and `conversations.cleared_results` the hashes of results and pivots that it
finds again. Keys are chains, which begin with the tenant, or hashes of the tenant and more; the owner inside
each record is checked when it is read.
"""

from dataclasses import dataclass

from gateway.state.calibrations import Calibrations
from gateway.state.heads import Heads
from gateway.state.owned_names import OwnedNames
from gateway.state.pivots import Pivots
from gateway.state.record_cache import Storage
from gateway.state.tasks import Tasks


@dataclass(frozen=True, kw_only=True)
class State:
    heads: Heads
    pivots: Pivots
    tasks: Tasks
    calibrations: Calibrations
    owned_names: OwnedNames


def make_state(storage: Storage) -> State:
    heads = Heads(storage)
    return State(
        heads=heads,
        pivots=Pivots(storage, heads),
        tasks=Tasks(storage, heads),
        calibrations=Calibrations(storage),
        owned_names=OwnedNames(storage),
    )
