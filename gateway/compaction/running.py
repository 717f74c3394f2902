"""What compactions share for as long as the process lives, whatever settings hold.

After a reload, requests under way finish on the old settings while new ones come. Both find here what is
being made already, so that a chain has one compaction at a time.
"""

import asyncio
from dataclasses import dataclass

from gateway.bounds.background import BackgroundTasks, Place, Slots
from gateway.compaction.summary_limiter import SummaryLimiter
from gateway.core.compaction.manual import ManualOutcome
from gateway.core.compaction.request import CompactionResult
from gateway.core.history.conversation import Conversation
from gateway.core.history.pivot import is_on_chain
from gateway.store.keys import make_tag


@dataclass(frozen=True, slots=True)
class RunningCompaction:
    """A compaction in progress. key: of the chain up to `covers`."""

    owner: str
    conversation_id: str
    key: str
    covers: int
    place: Place
    task: "asyncio.Task[CompactionResult]"


@dataclass(frozen=True, slots=True)
class RunningDigest:
    conversation_id: str
    task: "asyncio.Task[bool]"


@dataclass(frozen=True, slots=True)
class ManualRun:
    """A manual compaction in progress. key: the chain of the request that it was asked for at."""

    key: str
    task: "asyncio.Task[ManualOutcome]"


class RunningCompactions:
    """What is added is dropped when its task ends.

    slots: for summaries that are made at the same time. tasks: all work behind requests for compactions.
    """

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.tasks = BackgroundTasks("background task")
        self.limiter = SummaryLimiter()
        self._compactions: dict[str, RunningCompaction] = {}
        self._digests: dict[str, RunningDigest] = {}
        self._manual: dict[str, ManualRun] = {}

    def add(self, running: RunningCompaction) -> None:
        self._compactions[running.key] = running
        running.task.add_done_callback(lambda _: self._drop(running))

    def find_on_chain(self, owner: str, conversation: Conversation) -> RunningCompaction | None:
        """The compaction of this chain, whatever it will cover."""
        for running in self._compactions.values():
            if running.task.done():
                # Its outcome is known to those who waited for it. It is dropped in this round of the loop.
                continue
            if running.owner == owner and is_on_chain(conversation, running.key, running.covers):
                return running
        return None

    def _drop(self, running: RunningCompaction) -> None:
        if self._compactions.get(running.key) is running:
            del self._compactions[running.key]

    def cancel(self, tag: str) -> None:
        """What is being made for this tenant is not needed any more."""
        for running in self._compactions.values():
            if make_tag(running.owner) == tag:
                running.task.cancel()
        self.limiter = SummaryLimiter()

    def cancel_conversation(self, conversation_id: str) -> None:
        """What is being made for one conversation."""
        for running in self._compactions.values():
            if running.conversation_id == conversation_id:
                running.task.cancel()
        for digest in self._digests.values():
            if digest.conversation_id == conversation_id:
                digest.task.cancel()
        manual = self._manual.get(conversation_id)
        if manual is not None:
            manual.task.cancel()

    def add_digest(self, key: str, digest: RunningDigest) -> None:
        """key: of the chain up to its cut."""
        self._digests[key] = digest
        digest.task.add_done_callback(lambda _: self._digests.pop(key, None))

    def find_digest(self, key: str) -> "asyncio.Task[bool] | None":
        digest = self._digests.get(key)
        return digest.task if digest is not None else None

    def add_manual(self, conversation_id: str, run: ManualRun) -> None:
        self._manual[conversation_id] = run
        run.task.add_done_callback(lambda _: self._manual.pop(conversation_id, None))

    def find_manual(self, conversation_id: str) -> ManualRun | None:
        """Each conversation has at most one."""
        return self._manual.get(conversation_id)
