"""Which of two texts for the same messages stays, a summary's or a digest's."""

from typing import Any, cast

from gateway.compaction.job import CompactionJob
from gateway.compaction.pivots import PivotMaker
from gateway.compaction.summarizer import Summarizer
from gateway.core.compaction.cut import Cut
from gateway.core.compaction.situation import Situation
from gateway.core.history.pivot import Pivot
from gateway.core.history.view import View
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy
from gateway.core.sizing.estimate import Calibration, Known
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.events import Bus
from gateway.reporting.metrics import Metrics
from gateway.reporting.originals import OriginalsArchive
from gateway.reporting.reporter import Reporter
from gateway.state.state import State
from gateway.store.memory import MemoryStore
from tests.builders.chat import make_pivot, make_turn, measure_sizes, read, render
from tests.builders.state import make_state

_BODY = read(
    render(
        [
            {"role": "user", "content": "Fix it."},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "More."},
        ]
    )
)
_RECEIVED = _BODY.conversation
_CUT = Cut(base=None, start=1, covers=2, replaced_tokens=100, cap_tokens=50, opening_chars=None)
_TURN = make_turn(_BODY)


_SITUATION = Situation(
    owner="t",
    conversation=_RECEIVED,
    sizes=measure_sizes(_TURN.received),
    policy=Policy(),
    limits=Limits(),
    requested=None,
    growth=0.0,
    known=Known(head=None, head_view=View(None, {}), calibration=Calibration()),
    sticky=None,
    pivots=(),
    batches=(),
    may_compact=True,
)


class _SlowPivots:
    """While it is at work the summary comes in."""

    def __init__(self, state: State, arriving: Pivot | None) -> None:
        self._state = state
        self._arriving = arriving

    async def make_digest(self, *_: object) -> Pivot:
        if self._arriving is not None:
            await self._state.pivots.save(self._arriving)
        return _make_pivot(summary="A digest.", is_digest=True)


def _make_pivot(**fields: Any) -> Pivot:
    return make_pivot(_RECEIVED, _CUT.covers, **fields)


async def _fold(arriving: Pivot | None) -> tuple[bool, Pivot | None]:
    store = MemoryStore()
    await store.open()
    state = make_state(store)
    job = CompactionJob(
        state,
        cast("Summarizer", None),
        cast("PivotMaker", _SlowPivots(state, arriving)),
        Reporter(Metrics(), Bus(), CompactionLogWriter(store, 60), OriginalsArchive(store, 60)),
    )
    done = await job.digest(_TURN, _SITUATION, _CUT)
    return done, state.pivots.find(_RECEIVED.chain[_CUT.covers].hex())


async def test_a_digest_never_replaces_the_summary_that_came_in_while_it_was_made() -> None:
    summary = _make_pivot(summary="A summary.")
    assert await _fold(summary) == (True, summary)


async def test_without_one_it_takes_the_place() -> None:
    done, kept = await _fold(None)
    assert done and kept is not None and kept.is_digest
