"""Edits a summary: a person's text is its next version, and is used from the next request on.

An edit waits for a compaction that builds on the same summary, and is refused if a newer one has taken its
place then. A compaction that finds its base edited, because it lost its lease meanwhile, is thrown away, and
the next request starts another one: both hold the lease of the summary that they begin with.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from gateway.conversations.turn import Turn
from gateway.core.compaction.situation import Situation
from gateway.core.compaction.summary import SummaryBounds, find_edit_flaw
from gateway.core.history.conversation import list_links
from gateway.core.history.pivot import Pivot, edit_pivot, is_on_chain
from gateway.planning.message_sizes import Sizer
from gateway.planning.planner import Planner
from gateway.reporting.reporter import Reporter
from gateway.state import State
from gateway.state.single import LeaseLost
from gateway.store.interface import Lease


@dataclass(frozen=True, slots=True)
class EditRefused:
    """Nothing has changed. cause: it is of another version than the text was written for; it is not in use
    any more; there is no such version; the text does not pass its checks; another one is being made from it,
    or written, for longer than a person waits.
    """

    cause: Literal["outdated", "not in use", "unknown version", "flawed", "busy"]
    reason: str


# A compaction that builds on the summary may take longer: then the person tries again later.
_MOST_SECONDS: Final = 20.0
_NOT_IN_USE: Final = EditRefused("not in use", "This summary is not in use any more.")
_REPLACED: Final = EditRefused(
    "not in use", "A newer summary has taken the place of this one; it is used from the next request on."
)

_BUSY: Final = EditRefused("busy", "This summary is being replaced, or changed by somebody else: try again.")


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

    async def edit(
        self, turn: Turn, key: str, wanted: str | int, based_on: int | None = None
    ) -> Pivot | EditRefused:
        """The pivot with the new text, durable by now. turn: the newest of the conversation.

        wanted: the text; or the version of the original one, which has passed its checks. based_on: the
        version that the person saw; None: whichever it is. Raises StoreError.
        """
        situation = await self._planner.gather(turn, may_compact=False)
        try:
            async with self._state.single.hold(turn.owner, key, _MOST_SECONDS) as lease:
                pivot = await self._find_in_use(turn, key, based_on)
                if isinstance(pivot, EditRefused):
                    return pivot
                return await self._write(turn, situation, lease, pivot, wanted)
        except LeaseLost:
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

    async def _write(
        self, turn: Turn, situation: Situation, lease: Lease, pivot: Pivot, wanted: str | int
    ) -> Pivot | EditRefused:
        text, original = wanted, pivot.original
        if isinstance(text, int):
            if original is None or original.version != text:
                return EditRefused("unknown version", f"The text of version {text} is not kept.")
            text = original.text
        estimator, ratio = turn.policy.estimator, situation.calibrated.ratio
        before = await self._sizer.count(turn.owner, pivot.told.text, estimator)
        after = await self._sizer.count(turn.owner, text, estimator)
        thresholds = situation.thresholds
        bounds = SummaryBounds(
            replaced_tokens=pivot.saved_tokens + int(before * ratio),
            cap_tokens=thresholds.longest_summary if thresholds is not None else 0,
        )
        flaw = find_edit_flaw(text, int(after * ratio), bounds) if text is wanted else None
        if flaw is not None:
            return EditRefused("flawed", flaw)
        edited = edit_pivot(pivot, text, after - before, int((after - before) * ratio), self._clock())
        if not await self._state.pivots.save_edited(lease, edited):
            return _BUSY
        self._reporter.note_edit(turn, pivot, edited)
        return edited
