"""What is known about conversations: records on the store, and one memory in front. Knows no wire format.

The compaction package writes them, with four exceptions: `planning.learning` saves calibrations, the limits
book learned limits, `pipeline.name_guard` names that an upstream gave, and `conversations.stored_responses`
what they stand for. Names are chains, which begin with the tenant, or hashes of the tenant and more; the
owner is in the key of each record, and a checksum binds both.
"""

from dataclasses import dataclass

from gateway.state.cached import Storage
from gateway.state.calibrations import Calibrations
from gateway.state.heads import Heads
from gateway.state.histories import Histories
from gateway.state.kinds import make_state_records
from gateway.state.memory import Memory
from gateway.state.news import StateNews
from gateway.state.owned_names import OwnedNames
from gateway.state.pivots import Pivots
from gateway.state.recalls import Recalls
from gateway.state.single import LeaseTimes, Single
from gateway.state.summary_edits import SummaryEdits
from gateway.state.tasks import Tasks
from gateway.state.trip import Trip
from gateway.store.interface import LATEST, Store


@dataclass(frozen=True, kw_only=True)
class State:
    """is_alone: no other process serves the same clients, whoever may open the store."""

    store: Store
    is_alone: bool
    memory: Memory
    heads: Heads
    pivots: Pivots
    recalls: Recalls
    tasks: Tasks
    calibrations: Calibrations
    owned_names: OwnedNames
    histories: Histories
    news: StateNews
    single: Single
    edits: SummaryEdits

    def begin_trip(self, owner: str, wait: float = LATEST) -> Trip:
        """Look-ups for one request."""
        return Trip(self.store, self.memory, owner, wait)


def make_storage(store: Store, keep_seconds: float, max_bytes: int) -> Storage:
    """See Storage."""
    records = make_state_records(store, keep_seconds)
    return Storage(
        store=store, records=records, memory=Memory(), keep_seconds=keep_seconds, max_bytes=max_bytes
    )


def make_state(storage: Storage, times: LeaseTimes | None = None, *, is_alone: bool = True) -> State:
    store, memory = storage.store, storage.memory
    heads, news = Heads(storage), StateNews(store, memory)
    pivots = Pivots(storage, heads, news)
    single = Single(store, storage.records.failures, times or LeaseTimes())
    return State(
        store=store,
        is_alone=is_alone,
        memory=memory,
        heads=heads,
        pivots=pivots,
        recalls=Recalls(storage),
        tasks=Tasks(storage, heads, news),
        calibrations=Calibrations(storage, news),
        owned_names=OwnedNames(storage),
        histories=Histories(storage),
        news=news,
        single=single,
        edits=SummaryEdits(pivots, single),
    )
