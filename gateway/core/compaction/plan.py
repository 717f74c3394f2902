"""Decides what is done with one request, and what is prepared after its response.

Pure: compares the numbers of one conversation and chooses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gateway.core.compaction.batches import changes_for_free, choose_batches, with_marks
from gateway.core.compaction.clamp import SMALLEST_REPLY_TOKENS, choose_output
from gateway.core.compaction.cut import (
    NEEDED_SHARE,
    WORTHWHILE_SHARE,
    Cut,
    CutConstraints,
    choose_cut,
    is_worthwhile,
)
from gateway.core.compaction.shorten import choose_shortening
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import find_open_group
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.history.recall import Recall
from gateway.core.history.view import View, make_view
from gateway.core.lazy import lazy
from gateway.core.limits.small_windows import SmallWindow, find_small_window
from gateway.core.limits.thresholds import Thresholds
from gateway.core.sizing.estimate import Estimate

# As the header `x-gateway-plan` and the admin API name it.
PlanName = Literal["passthrough", "pruned", "pivot", "pivot+pruned", "digest"]


# Not frozen: a plan is made for every request, and frozen dataclasses are slow to make.
@dataclass(kw_only=True, slots=True)
class Plan:
    """What to send."""

    pivot: Pivot | None
    # All active batches, `new_batch` among them.
    batches: tuple[Batch, ...]
    new_batch: Batch | None
    # Estimated tokens of what the client sent, and of what upstream is sent.
    received: int
    sent: int
    # The clamped length of the reply; None leaves the client's.
    output: int | None
    # Says what does not fit the window; None if all fits.
    warning: str | None = None
    # Set if the conversation is compacted too often because its window is too small for it.
    small_window: SmallWindow | None = None
    # All active recalls, `new_recall` among them: the one that this request or its reply brought.
    recalls: tuple[Recall, ...] = ()
    new_recall: Recall | None = None

    @property
    def view(self) -> View:
        return make_view(self.pivot, self.batches, self.recalls)

    @property
    def name(self) -> PlanName:
        if self.pivot is None:
            return "pruned" if self.batches else "passthrough"
        if self.pivot.is_digest:
            return "digest"
        return "pivot+pruned" if self.batches else "pivot"

    @property
    def changes_prefix(self) -> bool:
        """Whether the messages are sent in another way than they were received."""
        return bool(self.pivot is not None or self.batches or self.recalls)

    @property
    def changes_body(self) -> bool:
        return self.changes_prefix or self.output is not None


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
    2. Apply the eligible pivot that covers most, if it was made because old messages had cost enough, or if
       the provider's cache has lost the prefix in any case.
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
    9. Send it with its largest texts cut.
    """
    thresholds = situation.thresholds
    if thresholds is None:
        return make_active_plan(situation)
    options = _Options(situation, thresholds)
    return next(decision for rule in _RULES if (decision := rule(options)) is not None)


def make_active_plan(situation: Situation) -> Plan:
    """Sends what is active: the pivot, the marks and the recalls that were sent before."""
    return _make_plan(situation, situation.sticky, situation.batches, None)


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
    options = _Options(situation, thresholds)
    if choose_batches(situation, thresholds, total_tokens) is not None:
        return None
    is_next = is_due or situation.policy.trigger.early
    lead = 0 if is_next else max(0, thresholds.hard - total_tokens)
    cut = options.choose_cut(situation.sticky, options.find_answered_position(lead), lead)
    if cut is None or not is_worthwhile(cut, WORTHWHILE_SHARE * thresholds.hard):
        return None
    return cut


def find_ready_pivot(situation: Situation) -> Pivot | None:
    """The eligible pivot that covers most, if it covers more than the active one."""
    newest = situation.pivots[-1] if situation.pivots else None
    covers = situation.sticky.covers if situation.sticky is not None else -1
    return newest if newest is not None and newest.covers > covers else None


def _apply_early_pivot(options: "_Options") -> Decision | None:
    newest, situation = options.newest, options.situation
    if newest is None or newest is situation.sticky:
        return None
    covers = situation.sticky.covers if situation.sticky is not None else 0
    is_wanted = any(pivot.is_early for pivot in situation.pivots if pivot.covers > covers)
    if (
        not (is_wanted or changes_for_free(situation))
        or options.newest_estimate.tokens > options.thresholds.hard
    ):
        return None
    return options.plan_with_newest()


def _send_below_first_threshold(options: "_Options") -> Decision | None:
    thresholds = options.thresholds
    first = thresholds.soft if options.situation.policy.trigger.early else thresholds.hard
    return options.plan_active() if options.active_tokens <= first else None


def _apply_newest_pivot(options: "_Options") -> Decision | None:
    situation, thresholds = options.situation, options.thresholds
    limit = (thresholds.target + thresholds.hard) // 2 if situation.has_compacted else thresholds.hard
    if options.newest is situation.sticky or options.newest_estimate.tokens > limit:
        return None
    return options.plan_with_newest()


def _send_below_hard_threshold(options: "_Options") -> Decision | None:
    return options.plan_active() if options.active_tokens <= options.thresholds.hard else None


def _compact_first(options: "_Options") -> Decision | None:
    cut = options.worthwhile_cut
    return CompactFirst(cut=cut) if cut is not None and options.situation.may_compact else None


def _digest_first(options: "_Options") -> Decision | None:
    cut, situation = options.worthwhile_cut, options.situation
    is_wanted = not options.fits or situation.policy.summary.digest_at_line
    return DigestFirst(cut=cut) if cut is not None and situation.may_digest and is_wanted else None


def _send_what_fits(options: "_Options") -> Decision | None:
    return options.plan_with_newest() if options.fits else None


def _cut_largest_texts(options: "_Options") -> Decision | None:
    return options.plan_shortened()


# In the order of the docstring of `decide`, from its second rule on. The last one always decides.
_RULES: Final[tuple[Callable[["_Options"], Decision | None], ...]] = (
    _apply_early_pivot,
    _send_below_first_threshold,
    _apply_newest_pivot,
    _send_below_hard_threshold,
    _compact_first,
    _digest_first,
    _send_what_fits,
    _cut_largest_texts,
)


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

    @lazy
    def fits(self) -> bool:
        """Whether the window holds the array with its newest pivot, and a short reply."""
        estimate = self.newest_estimate
        # Before the first response the estimate is too uncertain to remove something from a request.
        unsure = estimate.unsure if self.situation.known.head is not None else 0
        return estimate.tokens + unsure + SMALLEST_REPLY_TOKENS <= self.thresholds.window

    @lazy
    def worthwhile_cut(self) -> Cut | None:
        """The largest cut, if it frees enough. Less is enough if the window does not hold the array."""
        cut = self.choose_cut(self.newest, find_open_group(self.situation.conversation))
        share = WORTHWHILE_SHARE if self.fits else NEEDED_SHARE
        return cut if cut is not None and is_worthwhile(cut, share * self.thresholds.hard) else None

    def find_answered_position(self, lead: int) -> int:
        """Where a tail begins after a response. Even the last group may be compacted if it is too large.

        lead: tokens by which the conversation will still grow before the cut is applied.
        """
        conversation, thresholds = self.situation.conversation, self.thresholds
        calibrated = self.situation.calibrated
        open_group = find_open_group(conversation)
        opening = min(self.situation.opening_tokens, thresholds.opening)
        room = thresholds.target - int(calibrated.environment) - opening - thresholds.summary
        fits = sum(calibrated.messages[open_group:]) + lead <= max(room, thresholds.tail)
        return open_group if fits else len(conversation.messages)

    def choose_cut(self, base: Pivot | None, must_keep: int, lead: int = 0) -> Cut | None:
        situation = self.situation
        parts = CutConstraints(base=base, must_keep=must_keep, lead=lead)
        return choose_cut(
            situation.conversation, situation.calibrated, self.thresholds, situation.policy.keep, parts
        )

    def plan_active(self) -> Plan:
        return _make_plan(self.situation, self.situation.sticky, self.batches, self.thresholds)

    def plan_with_newest(self) -> Plan:
        return _make_plan(self.situation, self.newest, self.batches, self.thresholds)

    def plan_shortened(self) -> Plan:
        """The array with its largest texts cut, if the policy allows that."""
        situation = self.situation
        view = situation.view(self.newest, self.batches)
        if not situation.policy.auto:
            return self.plan_with_newest()
        excess = self.newest_estimate.tokens - self.thresholds.hard
        marks = choose_shortening(situation.conversation, situation.calibrated, view, excess)
        if not marks:
            return self.plan_with_newest()
        batches = with_marks(situation, self.newest, self.batches, marks)
        return _make_plan(situation, self.newest, batches, self.thresholds)


def _find_small_window(situation: Situation) -> SmallWindow | None:
    """None if the window is large enough, and where something else fills it: bytes, pictures."""
    if situation.in_tokens is not None or not situation.policy.auto:
        return None
    opening = situation.opening_tokens if situation.policy.keep.opening else 0
    whole_floor = int(situation.calibrated.environment) + opening
    return find_small_window(situation.policy, situation.limits, situation.size, whole_floor)


def _make_plan(
    situation: Situation, pivot: Pivot | None, batches: Sequence[Batch], thresholds: Thresholds | None
) -> Plan:
    batches = [batch for batch in batches if _is_visible(batch, pivot)]
    view = situation.view(pivot, batches)
    recalls = situation.choose_recalls(pivot)
    estimate = situation.estimate(view)
    context = thresholds.context if thresholds is not None else None
    fits = context is None or estimate.tokens + SMALLEST_REPLY_TOKENS <= context
    received = estimate.tokens
    if pivot is not None or batches or recalls:
        received = max(received, int(situation.calibrated.total(View(None, {}))))
    return Plan(
        pivot=pivot,
        batches=tuple(batches),
        new_batch=next((batch for batch in batches if batch not in situation.batches), None),
        received=received,
        sent=estimate.tokens,
        output=_choose_output(situation, view, context),
        warning=None if fits else _describe_excess(situation, estimate, context),
        small_window=_find_small_window(situation) if pivot is not None else None,
        recalls=recalls,
        new_recall=situation.new_recall if situation.new_recall in recalls else None,
    )


def _is_visible(batch: Batch, pivot: Pivot | None) -> bool:
    """Whether the batch marks anything after the pivot. Otherwise it is dropped."""
    return pivot is None or any(mark.position >= pivot.covers for mark in batch.marks)


def _choose_output(situation: Situation, view: View, context: int | None) -> int | None:
    """A reply needs room in tokens only: bytes and pictures do not count."""
    if situation.in_tokens is not None:
        context = situation.in_tokens.limits.context
    estimate = situation.estimate_tokens(view)
    return choose_output(situation.requested, context, estimate, situation.minimum_reply)


def _describe_excess(situation: Situation, estimate: Estimate, context: int | None) -> str:
    open_group = find_open_group(situation.conversation)
    parts = {
        "leading block and tools": int(situation.calibrated.environment),
        "opening": situation.opening_tokens,
        "open group": int(sum(situation.calibrated.messages[open_group:])),
    }
    largest = max(parts, key=lambda part: parts[part])
    return f"about {estimate.tokens} of {context} tokens; largest fixed part: {largest}, {parts[largest]}"
