"""Edits a summary: a person's text is its next version, and is used from the next request on.

An edit waits for a compaction that builds on the same summary, and is refused if a newer one has taken its
place then. A compaction that finds its base edited, because it lost its lease meanwhile, is thrown away, and
the next request starts another one. See `state.summary_edits`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from gateway.conversations.turn import Turn
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import SummaryBounds, find_edit_flaw
from gateway.core.history.conversation import list_links
from gateway.core.history.pivot import Pivot, edit_pivot, is_on_chain
from gateway.planning.message_sizes import Sizer
from gateway.planning.planner import Planner
from gateway.reporting.reporter import Reporter
from gateway.state import State
from gateway.state.summary_edits import BeingReplaced
from gateway.store.interface import Lease


@dataclass(frozen=True, slots=True)
class EditRefused:
    """Nothing has changed. cause: it is of another version than the text was written for; it is not in use
    any more; there is no such version; the text does not pass its checks; another one is being made from it,
    or written, for longer than a person waits.
    """

    cause: Literal["outdated", "not in use", "unknown version", "flawed", "busy"]
    reason: str


_NOT_IN_USE: Final = EditRefused("not in use", "This summary is not in use any more.")
_REPLACED: Final = EditRefused(
    "not in use", "A newer summary has taken the place of this one; it is used from the next request on."
)

_BUSY: Final = EditRefused("busy", "This summary is being replaced, or changed by somebody else: try again.")


class _Measured(NamedTuple):
    """Raw tokens of the text in use and of the new one, and true tokens for each of them."""

    before: int
    after: int
    ratio: float

    @property
    def added(self) -> int:
        return self.after - self.before


class SummaryEditor:
    """clock: seconds since 1970."""

    def __init__(
        self,
        state: State,
        planner: Planner,
        sizer: Sizer,
        reporter: Reporter,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._planner = planner
        self._sizer = sizer
        self._reporter = reporter
        self._clock = clock

    async def edit(self, turn: Turn, key: str, text: str, based_on: int | None = None) -> Pivot | EditRefused:
        """The pivot with the new text, durable by now. turn: the newest of the conversation.

        based_on: the version that the person saw; None: whichever it is. Raises StoreError.
        """
        return await self._change(turn, key, text, based_on)

    async def restore(
        self, turn: Turn, key: str, version: int, based_on: int | None = None
    ) -> Pivot | EditRefused:
        """The original text, which has passed its checks, as a new version. Raises StoreError."""
        return await self._change(turn, key, version, based_on)

    async def _change(
        self, turn: Turn, key: str, wanted: str | int, based_on: int | None
    ) -> Pivot | EditRefused:
        """wanted: the new text, or the version that has it. Holds the lease on the pivot."""
        situation = await self._planner.gather(turn, may_compact=False)
        try:
            async with self._state.edits.hold(turn.owner, key) as lease:
                pivot = await self._find_in_use(turn, key, based_on)
                if isinstance(pivot, EditRefused):
                    return pivot
                text = wanted if isinstance(wanted, str) else _find_version(pivot, wanted)
                if isinstance(text, EditRefused):
                    return text
                measured = await self._measure(turn, situation, pivot, text)
                flaw = _find_flaw(situation, pivot, text, measured) if text is wanted else None
                return flaw or await self._save(turn, lease, pivot, text, measured)
        except BeingReplaced:
            return _BUSY

    async def _find_in_use(self, turn: Turn, key: str, based_on: int | None) -> Pivot | EditRefused:
        """The pivot, if none that covers more is known anywhere, and it is of the version that was seen."""
        pivots, conversation = self._state.pivots, turn.received.conversation
        pivot = await pivots.load_again(turn.owner, key)
        if pivot is None or pivot.owner != turn.owner or not is_on_chain(conversation, key, pivot.covers):
            return _NOT_IN_USE
        newer = [link.hex() for link in list_links(conversation, pivot.covers + 1)]
        if await pivots.load_newest(turn.owner, newer) is not None:
            return _REPLACED
        if based_on not in (None, pivot.version):
            reason = f"The summary is of version {pivot.version} by now, not {based_on}."
            return EditRefused("outdated", reason)
        return pivot

    async def _measure(self, turn: Turn, situation: Situation, pivot: Pivot, text: str) -> _Measured:
        estimator = turn.policy.estimator
        before = await self._sizer.count(turn.owner, pivot.told.text, estimator)
        after = await self._sizer.count(turn.owner, text, estimator)
        return _Measured(before, after, situation.calibrated.ratio)

    async def _save(self, turn: Turn, lease: Lease, pivot: Pivot, text: str, measured: _Measured) -> Pivot:
        edited = edit_pivot(pivot, text, measured.added, int(measured.added * measured.ratio), self._clock())
        if not await self._state.pivots.save_edited(lease, edited):
            raise BeingReplaced("another process is changing this summary")
        self._reporter.note_edit(turn, pivot, edited)
        return edited


def _find_version(pivot: Pivot, version: int) -> str | EditRefused:
    earlier = pivot.original
    if earlier is None or earlier.version != version:
        return EditRefused("unknown version", f"The text of version {version} is not kept.")
    return earlier.text


def _find_flaw(situation: Situation, pivot: Pivot, text: str, measured: _Measured) -> EditRefused | None:
    """Why the text may not be used."""
    thresholds = situation.thresholds
    bounds = SummaryBounds(
        replaced_tokens=pivot.saved_tokens + int(measured.before * measured.ratio),
        cap_tokens=thresholds.longest_summary if thresholds is not None else 0,
    )
    flaw = find_edit_flaw(text, int(measured.after * measured.ratio), bounds)
    return EditRefused("flawed", flaw.reason) if flaw is not None else None
