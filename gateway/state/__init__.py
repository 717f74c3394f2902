"""What is known about conversations: records on the store, and one memory in front. Knows no wire format.

The compaction package writes them, with four exceptions: `planning.learning` saves calibrations, the limits
book learned limits, `pipeline.name_guard` names that an upstream gave, and `conversations.stored_responses`
what they stand for. Names are chains, which begin with the tenant, or hashes of the tenant and more; the
owner is in the key of each record, and a checksum binds both.
"""

from gateway.state.cached import Storage
from gateway.state.calibrations import Calibrations
from gateway.state.heads import Heads
from gateway.state.histories import Histories
from gateway.state.news import StateNews
from gateway.state.owned_names import OwnedNames
from gateway.state.pivots import Pivots
from gateway.state.single import LeaseTimes, Single
from gateway.state.tasks import Tasks


class State:
    def __init__(self, storage: Storage, times: LeaseTimes | None = None, *, is_alone: bool = True) -> None:
        """is_alone: no other process serves the same clients, whoever may open the store."""
        self.store, self.memory, self.is_alone = storage.store, storage.memory, is_alone
        # Look-ups for one request.
        self.begin_trip = storage.begin_trip
        self.news = StateNews(storage.store, storage.memory)
        self.heads = Heads(storage)
        self.histories = Histories(storage, self.heads)
        self.pivots = Pivots(storage, self.news)
        self.tasks = Tasks(storage, self.news)
        self.calibrations = Calibrations(storage, self.news)
        self.owned_names = OwnedNames(storage)
        self.single = Single(storage.store, storage.records.failures, times or LeaseTimes())
