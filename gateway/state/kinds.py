"""The kinds of records about conversations, and those of their records that are not `core`'s."""

from dataclasses import dataclass
from typing import Final

from gateway.core.compaction.manual import Compacted
from gateway.core.history.ends import HistoryEnd
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Pivot, Recall
from gateway.core.limits.model_limits import Learned
from gateway.core.sizing.estimate import Calibration
from gateway.state.records import K, Kind, Records
from gateway.store.interface import Store

# In a store of one process only the newest head of a conversation is written: a lost one costs an estimate.
# Other processes need heads for the very next request.
_LINGER_ALONE_SECONDS: Final = 2.0
_LINGER_SHARED_SECONDS: Final = 0.0
# Those who wait for a leader look at once when it is done.
_FAILURE_SECONDS: Final = 60.0
# Limits that errors of upstreams have told.
LEARNED: Final = "learned"


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A compaction that is due. It is saved before the work begins and deleted when the work is done.

    key: chain of the request after whose response it was decided. auto: false if a person asked for it.
    instructions: what that person wants kept in mind. conversation: its id.
    """

    owner: str
    key: str
    length: int
    auto: bool
    reason: str
    created_seconds: float
    instructions: str = ""
    conversation: str = ""


@dataclass(frozen=True, kw_only=True)
class FailedCompaction:
    """A compaction that came to nothing. fence: of the lease of the process that made it."""

    fence: int
    reason: str


class StateRecords:
    """All kinds on one store. The group of each record is its conversation; none if several share it."""

    def __init__(self, store: Store, keep_seconds: float) -> None:
        """keep_seconds: `retention.days`."""

        def make(
            name: str, record: type[K], seconds: float = keep_seconds, linger: float = 0.0
        ) -> Records[K]:
            return Records(store, Kind(name=name, type=record, keep_seconds=seconds, linger=linger))

        linger = _LINGER_SHARED_SECONDS if store.is_shared else _LINGER_ALONE_SECONDS
        self.heads = make("head", Head, linger=linger)
        self.pivots = make("pivot", Pivot)
        self.batches = make("batch", Batch)
        self.recalls = make("recall", Recall)
        self.markers = make("marker", Marker)
        self.commands = make("command", Compacted)
        self.failures = make("failure", FailedCompaction, _FAILURE_SECONDS)
        self.histories = make("history", HistoryEnd)
        self.learned = make(LEARNED, Learned)
        self.calibrations = make("calibration", Calibration)
        # The upstream gave the name, of which this is a hash, to this tenant.
        self.owned = make("owned", bool)
