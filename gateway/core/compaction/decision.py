"""Decides what is done with one request, and what is prepared after its response.

Pure: compares the numbers of one conversation and chooses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.compaction.cut import NEEDED_SHARE, WORTHWHILE_SHARE, Cut, choose_cut, is_worthwhile
from gateway.core.compaction.plan import Plan, find_least_output, make_active_plan, make_plan
from gateway.core.compaction.prune import (
    changes_for_free,
    choose_batches,
    choose_shortening,
    count_allowed,
    with_marks,
)
from gateway.core.compaction.situation import Situation, lazy
from gateway.core.history.conversation import find_open_group
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.limits.thresholds import Thresholds
from gateway.core.sizing.estimate import Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactFirst:
    """Compact this before sending, because the array is above the hard threshold."""

    cut: Cut


@dataclass(frozen=True, kw_only=True, slots=True)
class DigestFirst:
    """Replace this by a digest before sending, because no summary is available."""

    cut: Cut


Decision = Plan | CompactFirst | DigestFirst


def decide(situation: Situation) -> Decision:
    """The first of these rules that decides wins.

    1. Without a known limit, send what is active: the pivot and the marks that were sent before.
    2. Apply the eligible pivot that covers most, if old messages have cost enough for a compaction, or if the
       provider's cache has lost the prefix in any case.
    3. Up to the hard threshold, send what is active, with one more prune batch if one is worth it (see
       `_Options.batches`). A policy that applies pivots early stops at the soft threshold.
    4. Apply the eligible pivot that covers most, if that brings the array below the hard threshold. While
       the conversation is compacted in parts for this request it must come nearer to the target than to
       that threshold, or one of the next requests would have to continue with it.
    5. Up to the hard threshold, send what is active.
    6. Compact first, if that is allowed and frees enough.
    7. Replace old turns by a digest, if that is allowed and frees enough, and the window does not hold the
       array or the policy wants a digest at the hard threshold.
    8. Send the array with its newest pivot, if the window holds it.
    9. Send it with its largest texts cut, if upstream has refused it; what was cut before may be cut further.
    10. Send it whole: that it does not fit is an estimate.
    """
    thresholds = situation.thresholds
    if thresholds is None:
        return make_active_plan(situation)
    options = _Options(situation, thresholds)
    first = thresholds.soft if situation.policy.trigger.early else thresholds.hard
    if options.is_newest_due:
        return options.plan_with_newest()
    if options.active_tokens <= first:
        return options.plan_active()
    if options.is_newest_enough:
        return options.plan_with_newest()
    if options.active_tokens <= thresholds.hard:
        return options.plan_active()
    cut = options.worthwhile_cut
    if cut is not None and situation.may_compact:
        return CompactFirst(cut=cut)
    wants_digest = not options.fits or situation.policy.summary.digest_at_line
    if cut is not None and situation.may_digest and wants_digest:
        return DigestFirst(cut=cut)
    shortened = None if options.fits else options.plan_shortened()
    return shortened or options.plan_with_newest()


def decide_after(situation: Situation, total_tokens: int, *, is_due: bool = False) -> Cut | None:
    """What to compact in advance, after a response that brought the conversation to `total_tokens`.

    None below the soft threshold, unless old messages have cost enough (is_due); while a newer pivot than
    the active one is ready, so that usage of requests sent before it was made triggers nothing; while a prune
    batch is enough; and if compacting would free too little.
    """
    thresholds = situation.thresholds
    if not situation.may_compact or thresholds is None:
        return None
    if total_tokens <= thresholds.soft and not is_due:
        return None
    if find_ready_pivot(situation) is not None:
        return None
    if choose_batches(situation, thresholds, total_tokens) is not None:
        return None
    is_next = is_due or situation.policy.trigger.early
    lead = 0 if is_next else max(0, thresholds.hard - total_tokens)
    must_keep = _find_answered_position(situation, thresholds, lead)
    cut = choose_cut(situation, thresholds, situation.sticky, must_keep, lead)
    if cut is None or not is_worthwhile(cut, WORTHWHILE_SHARE * thresholds.hard):
        return None
    return cut


def find_ready_pivot(situation: Situation) -> Pivot | None:
    """The eligible pivot that covers most, if it covers more than the active one."""
    newest = situation.pivots[-1] if situation.pivots else None
    covers = situation.sticky.covers if situation.sticky is not None else -1
    return newest if newest is not None and newest.covers > covers else None


def _find_answered_position(situation: Situation, thresholds: Thresholds, lead: int) -> int:
    """Where a tail begins after a response. Even the last group may be compacted if it is too large.

    lead: tokens by which the conversation will still grow before the cut is applied.
    """
    calibrated, open_group = situation.calibrated, find_open_group(situation.conversation)
    opening = min(situation.opening_tokens, thresholds.opening)
    room = thresholds.target - int(calibrated.environment) - opening - thresholds.summary
    fits = sum(calibrated.messages[open_group:]) + lead <= max(room, thresholds.tail)
    return open_group if fits else len(calibrated.messages)


class _Options:
    """What can be done in a situation with known thresholds. Each number is computed once, when needed."""

    def __init__(self, situation: Situation, thresholds: Thresholds) -> None:
        self.situation = situation
        self.thresholds = thresholds

    @lazy
    def batches(self) -> Sequence[Batch]:
        """The active batches, and one more if it is worth it.

        Unless the policy prunes eagerly: none while a pivot is ready or in progress, because that one is
        paid for already.
        """
        situation, thresholds = self.situation, self.thresholds
        has_newer = bool(situation.pivots) and situation.pivots[-1] is not situation.sticky
        is_paid_for = situation.is_preparing or has_newer
        if is_paid_for and not situation.policy.pruning.eager:
            return situation.batches
        current = situation.estimate(situation.view(situation.sticky, situation.batches))
        return choose_batches(situation, thresholds, current.tokens) or situation.batches

    @lazy
    def active_tokens(self) -> int:
        return self.situation.estimate(self.situation.view(self.situation.sticky, self.batches)).tokens

    @property
    def newest(self) -> Pivot | None:
        """The eligible pivot that covers most."""
        return self.situation.pivots[-1] if self.situation.pivots else self.situation.sticky

    @lazy
    def newest_estimate(self) -> Estimate:
        return self.situation.estimate(self.situation.view(self.newest, self.batches))

    @property
    def is_newest_due(self) -> bool:
        """Whether the newest pivot is used below the thresholds, too."""
        situation, newest = self.situation, self.newest
        if newest is None or newest is situation.sticky:
            return False
        is_due = situation.ledger is not None and situation.ledger.is_due
        is_wanted = is_due or changes_for_free(situation)
        return is_wanted and self.newest_estimate.tokens <= self.thresholds.hard

    @property
    def is_newest_enough(self) -> bool:
        """Whether the newest pivot, which is not in use, brings the array down far enough."""
        thresholds = self.thresholds
        is_between = self.situation.has_compacted
        limit = (thresholds.target + thresholds.hard) // 2 if is_between else thresholds.hard
        return self.newest is not self.situation.sticky and self.newest_estimate.tokens <= limit

    @lazy
    def fits(self) -> bool:
        """Whether the window holds the array with its newest pivot, and a short reply."""
        estimate, situation = self.newest_estimate, self.situation
        reply = find_least_output(situation.requested, self.thresholds.window)
        # Before the first response the estimate is too uncertain to remove something from a request.
        unsure = estimate.unsure if situation.known.head is not None else 0
        return estimate.tokens + unsure + reply <= self.thresholds.window

    @lazy
    def worthwhile_cut(self) -> Cut | None:
        """The largest cut, if it frees enough. Less is enough if the window does not hold the array."""
        open_group = find_open_group(self.situation.conversation)
        cut = choose_cut(self.situation, self.thresholds, self.newest, open_group)
        share = WORTHWHILE_SHARE if self.fits else NEEDED_SHARE
        return cut if cut is not None and is_worthwhile(cut, share * self.thresholds.hard) else None

    def plan_active(self) -> Plan:
        return make_plan(self.situation, self.situation.sticky, self.batches, self.thresholds)

    def plan_with_newest(self) -> Plan:
        return make_plan(self.situation, self.newest, self.batches, self.thresholds)

    def plan_shortened(self) -> Plan | None:
        """The array with its largest texts cut; None if none may be cut, or if that is not enough.

        After a refusal as much as its numbers ask for. Later on, what was cut is cut to the target, so that
        not every turn is refused.
        """
        situation, refused = self.situation, self.situation.refused
        may_cut = None if refused is not None else situation.cut_positions
        if not situation.policy.compaction.auto or (may_cut is not None and not may_cut):
            return None
        allowed: float = self.thresholds.target
        if refused is not None:
            allowed = count_allowed(situation, self.thresholds, refused)
        view = situation.view(self.newest, self.batches)
        excess = self.newest_estimate.tokens - allowed
        marks = choose_shortening(situation.conversation, situation.calibrated, view, excess, may_cut)
        if not marks:
            return None
        batches = with_marks(situation, self.newest, self.batches, marks, is_cut=True)
        return make_plan(situation, self.newest, batches, self.thresholds)
