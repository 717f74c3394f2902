"""What is known about conversations, in nine repositories. Knows no wire format.

Records are held in memory, decoded, in front of a store. The compaction package writes them, with five
exceptions: `planning.learning` saves calibrations, the limits book learned limits, `pipeline.name_guard`
names that an upstream gave, `conversations.stored_responses` what they stand for, and
`conversations.cleared_results` the hashes of results and pivots that it finds again. Keys are chains, which
begin with the tenant, or hashes of the tenant and more; the owner inside each record is checked when it is
read.
"""

from dataclasses import dataclass, replace

from gateway.state.calibrations import Calibrations
from gateway.state.compaction_leases import CompactionLeases, LeaseTimes
from gateway.state.conversation_traces import ConversationTraces, trace_heads
from gateway.state.heads import Heads
from gateway.state.histories import Histories
from gateway.state.named_turns import NamedTurns
from gateway.state.news import StateNews
from gateway.state.owned_names import OwnedNames
from gateway.state.pivots import Pivots
from gateway.state.recalls import Recalls
from gateway.state.record_cache import Storage
from gateway.state.result_hashes import StoredResultHashes
from gateway.state.summary_edits import SummaryEdits
from gateway.state.tasks import Tasks
from gateway.store import Store


@dataclass(frozen=True, kw_only=True)
class State:
    store: Store
    heads: Heads
    pivots: Pivots
    recalls: Recalls
    result_hashes: StoredResultHashes
    tasks: Tasks
    calibrations: Calibrations
    owned_names: OwnedNames
    named_turns: NamedTurns
    histories: Histories
    news: StateNews
    leases: CompactionLeases
    edits: SummaryEdits

    def forget(self, tag: str) -> None:
        """All of a tenant leaves memory. What other packages hold is theirs to forget: see
        `StateNews.listen`.
        """
        for repository in (
            *(self.heads, self.pivots, self.tasks, self.calibrations, self.owned_names),
            *(self.named_turns, self.histories, self.news, self.recalls),
        ):
            repository.forget(tag)

    def trace(self, conversation_id: str) -> ConversationTraces:
        """What memory knows of a conversation."""
        return trace_heads(self.heads.list_of(conversation_id))

    def forget_conversation(self, tag: str, conversation_id: str, traces: ConversationTraces) -> None:
        """One conversation leaves memory. Calibrations belong to its model, and stay."""
        self.heads.forget_conversation(conversation_id)
        self.histories.forget_branch(conversation_id)
        self.pivots.forget_some(tag, traces.pivots, traces.batches)
        self.recalls.forget_some(traces.recalls)
        self.tasks.forget_some(traces.links)


def make_state(storage: Storage, named_store: Store | None = None, times: LeaseTimes | None = None) -> State:
    """named_store: for threads and responses that requests only name, which may be lost. None: the same."""
    heads, news = Heads(storage), StateNews(storage.store.news)
    pivots, leases = Pivots(storage, heads, news), CompactionLeases(storage, times or LeaseTimes())
    return State(
        store=storage.store,
        heads=heads,
        pivots=pivots,
        recalls=Recalls(storage),
        result_hashes=StoredResultHashes(storage),
        tasks=Tasks(storage, heads, news),
        calibrations=Calibrations(storage, news),
        owned_names=OwnedNames(storage),
        named_turns=NamedTurns(replace(storage, store=named_store or storage.store)),
        histories=Histories(storage),
        news=news,
        leases=leases,
        edits=SummaryEdits(storage, pivots, leases),
    )
