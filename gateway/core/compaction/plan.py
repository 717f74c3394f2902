"""What is done with one request, and what is prepared after its answer.

Knows everything about one conversation and nothing else; only compares numbers and picks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.core.compaction.clamp import SMALLEST_REPLY_TOKENS, choose_output
from gateway.core.compaction.cut import (
    NEEDED_SHARE,
    WORTHWHILE_SHARE,
    Cut,
    CutConstraints,
    choose_cut,
    is_worthwhile,
)
from gateway.core.compaction.prune import choose_prune_thresholds, choose_results
from gateway.core.compaction.shorten import choose_shortening
from gateway.core.history.conversation import Conversation, find_open_group
from gateway.core.history.pivot import Batch, Mark, Pivot
from gateway.core.history.view import View, make_view
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds
from gateway.core.policy import Policy
from gateway.core.sizing.calibrated_sizes import calibrate_sizes, estimate_view
from gateway.core.sizing.estimate import Estimate, Known, Sizes


@dataclass(frozen=True, slots=True)
class TokenSizes:
    """A request as it was before bytes and pictures were weighed with it (`bulk`)."""

    sizes: Sizes
    known: Known
    limits: Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """One request as the decisions see it.

    sticky: the pivot that the nearest head used. pivots: every eligible one, ascending. batches: marks in
    force. least_reply: tokens that the reply may not be clamped below. may_compact: false once a compaction
    failed, or where the policy forbids it; may_digest: likewise for the digest. is_preparing: a compaction of
    this chain is under way. is_folding: a part of it has been folded for this very request. in_tokens: where
    sizes and limits are not of tokens alone; None where they are.
    """

    owner: str
    conversation: Conversation
    sizes: Sizes
    policy: Policy
    limits: Limits
    requested: int | None
    growth: float
    known: Known
    sticky: Pivot | None
    pivots: Sequence[Pivot]
    batches: Sequence[Batch]
    may_compact: bool
    minimum_reply: int = 0
    may_digest: bool = False
    is_preparing: bool = False
    is_folding: bool = False
    token_sizes: TokenSizes | None = None


# Not frozen, for the reason of `Head`.
@dataclass(kw_only=True, slots=True)
class Plan:
    """Send this. received, sent: estimated tokens. output: the clamped reply, or None to leave it.

    batches: all in force, `new_batch` among them. warning: what does not fit, or None.
    """

    pivot: Pivot | None
    batches: tuple[Batch, ...]
    new_batch: Batch | None
    received: int
    sent: int
    output: int | None
    warning: str | None = None

    @property
    def view(self) -> View:
        return make_view(self.pivot, self.batches)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactFirst:
    """Fold this before sending, for the array is past the hard line."""

    cut: Cut


@dataclass(frozen=True, kw_only=True, slots=True)
class DigestFirst:
    """No summary is to be had, and the window cannot hold the array: a digest takes the place."""

    cut: Cut


def decide(situation: Situation) -> Plan | CompactFirst | DigestFirst:
    """The cases, in the order they are taken.

    1. no known limit: what was in force stays in force;
    2. a prune batch that is worth it (unless the policy is eager: from the soft line on, if it suffices, and
       if no pivot is ready or under way, which is paid for);
    3. up to the hard line: as it is; 4. above it: the eligible pivot that covers most (for a policy that
       applies early: from the soft line on; while chunks are being folded it must reach the target, or the
       next request would have to go on with it);
    5. if that is not enough: compact first; 6. where no summary is to be had: fold it into a digest, if the
       window does not hold it, or if the policy wants one; 7. send what there is, if the window holds it;
    8. else send it with its largest texts cut.
    """
    weighed = _Weighed(situation)
    lines = weighed.lines
    sticky, batches = situation.sticky, situation.batches
    if lines is None:
        return weighed.plan(sticky, batches)
    is_paid_for = situation.is_preparing or (bool(situation.pivots) and situation.pivots[-1] is not sticky)
    if situation.policy.pruning.eager or not is_paid_for:
        batches = weighed.prune(sticky, weighed.estimate(sticky, batches)) or batches
    tokens = weighed.estimate(sticky, batches).tokens
    if tokens <= (lines.soft if situation.policy.trigger.early else lines.hard):
        return weighed.plan(sticky, batches)
    best = situation.pivots[-1] if situation.pivots else sticky
    estimate = weighed.estimate(best, batches)
    line = lines.target if situation.is_folding else lines.hard
    if best is not sticky and estimate.tokens <= line:
        return weighed.plan(best, batches)
    if tokens <= lines.hard:
        return weighed.plan(sticky, batches)
    cut = weighed.cut(best, find_open_group(situation.conversation))
    # Before the first answer nothing is known well enough to take something away from a request.
    doubt = estimate.unsure if situation.known.head is not None else 0
    fits = estimate.tokens + doubt + SMALLEST_REPLY_TOKENS <= lines.window
    share = WORTHWHILE_SHARE if fits else NEEDED_SHARE
    if situation.may_compact and cut is not None and is_worthwhile(cut, share * lines.hard):
        return CompactFirst(cut=cut)
    wants_digest = situation.may_digest and (not fits or situation.policy.summary.digest_at_line)
    if wants_digest and cut is not None and is_worthwhile(cut, share * lines.hard):
        return DigestFirst(cut=cut)
    return weighed.plan(best, batches) if fits else weighed.squeeze(best, batches)


def decide_after(situation: Situation, plan: Plan, total_tokens: int) -> Cut | None:
    """What to prepare after an answer that brought the conversation to `total_tokens`; None: nothing yet.

    Nothing while a newer pivot than the one in force is ready (usage of requests that were in flight at a
    swap never triggers), while a prune batch will do, or if too little would be folded.
    """
    weighed = _Weighed(situation)
    lines = weighed.lines
    if not situation.may_compact or lines is None or total_tokens <= lines.soft:
        return None
    newest = situation.pivots[-1] if situation.pivots else None
    if newest is not None and newest.covers > (plan.pivot.covers if plan.pivot else -1):
        return None
    if weighed.prune(plan.pivot, Estimate(total_tokens, 0)) is not None:
        return None
    lead = 0 if situation.policy.trigger.early else max(0, lines.hard - total_tokens)
    cut = weighed.cut(plan.pivot, weighed.answered_position(lines), lead)
    if cut is None or not is_worthwhile(cut, WORTHWHILE_SHARE * lines.hard):
        return None
    return cut


class _Weighed:
    """A situation with its ratio, lines and true token sizes worked out once."""

    def __init__(self, situation: Situation) -> None:
        self.situation = situation
        self.weights = calibrate_sizes(situation.conversation, situation.sizes, situation.known)
        self.tokens = self.weights.messages
        self.environment = int(self.weights.environment)
        self.opening = int(sum(self.tokens[: situation.conversation.opening_end]))
        demand = RequestSize(
            requested=situation.requested, growth=situation.growth, minimum_reply=situation.minimum_reply
        )
        lines = choose_thresholds(situation.policy, situation.limits, demand)
        if lines is not None:
            floor = self.environment + (
                min(self.opening, lines.opening) if situation.policy.keep.opening else 0
            )
            demand = replace(demand, floor=floor)
            lines = choose_thresholds(situation.policy, situation.limits, demand)
        self.lines: Thresholds | None = lines

    def estimate(self, pivot: Pivot | None, batches: Sequence[Batch]) -> Estimate:
        situation = self.situation
        view = make_view(pivot, batches)
        return estimate_view(situation.conversation, self.weights, situation.known, view)

    def plan(self, pivot: Pivot | None, batches: Sequence[Batch]) -> Plan:
        batches = [batch for batch in batches if _shows(batch, pivot)]
        estimate = self.estimate(pivot, batches)
        context = self.lines.context if self.lines else None
        warning = None
        if context is not None and estimate.tokens + SMALLEST_REPLY_TOKENS > context:
            warning = self._say_what_does_not_fit(estimate, context)
        return Plan(
            pivot=pivot,
            batches=tuple(batches),
            new_batch=next((batch for batch in batches if batch not in self.situation.batches), None),
            received=self._received(pivot, batches, estimate),
            sent=estimate.tokens,
            output=self._choose_output(pivot, batches, estimate),
            warning=warning,
        )

    def prune(self, pivot: Pivot | None, current: Estimate) -> list[Batch] | None:
        """With one more batch, if it is worth it, and (unless eager or partial) suffices."""
        situation, lines = self.situation, self.lines
        pruning = situation.policy.pruning
        if lines is None or not situation.policy.prune:
            return None
        if not pruning.eager and current.tokens <= lines.soft:
            return None
        view = make_view(pivot, situation.batches)
        thresholds = choose_prune_thresholds(pruning, lines.hard)
        positions = choose_results(situation.conversation, self.weights, view, pruning, thresholds)
        if not positions:
            return None
        marks = [Mark(position, pruning.keep_chars) for position in positions]
        batches = self._with_marks(pivot, situation.batches, marks)
        saved = sum(batch.saved_tokens for batch in batches if batch not in situation.batches)
        suffices = current.tokens - saved <= lines.target
        return batches if suffices or pruning.eager or pruning.partial else None

    def cut(self, base: Pivot | None, must_keep: int, lead: int = 0) -> Cut | None:
        situation = self.situation
        if self.lines is None:
            return None
        parts = CutConstraints(base=base, must_keep=must_keep, lead=lead)
        return choose_cut(situation.conversation, self.weights, self.lines, situation.policy.keep, parts)

    def answered_position(self, lines: Thresholds) -> int:
        """After the answer even the last group may be folded, but only if it is too large for a tail."""
        conversation = self.situation.conversation
        open_group = find_open_group(conversation)
        room = lines.target - self.environment - min(self.opening, lines.opening) - lines.summary
        fits = sum(self.tokens[open_group:]) <= max(room, lines.tail)
        return open_group if fits else len(conversation.messages)

    def squeeze(self, pivot: Pivot | None, batches: Sequence[Batch]) -> Plan:
        """The array with its largest texts cut, for nothing else brings it inside the window."""
        situation, lines = self.situation, self.lines
        if lines is None or not situation.policy.auto:
            return self.plan(pivot, batches)
        view = make_view(pivot, batches)
        excess = self.estimate(pivot, batches).tokens - lines.hard
        marks = choose_shortening(situation.conversation, self.weights, view, excess)
        if not marks:
            return self.plan(pivot, batches)
        return self.plan(pivot, self._with_marks(pivot, batches, marks))

    def _choose_output(self, pivot: Pivot | None, batches: Sequence[Batch], estimate: Estimate) -> int | None:
        """A reply takes tokens, not bytes: pictures leave it all the room that the words leave."""
        situation, context = self.situation, self.lines.context if self.lines else None
        true = situation.token_sizes
        if true is not None:
            conversation, view = situation.conversation, make_view(pivot, batches)
            weights = calibrate_sizes(conversation, true.sizes, true.known)
            estimate, context = estimate_view(conversation, weights, true.known, view), true.limits.context
        return choose_output(situation.requested, context, estimate, situation.minimum_reply)

    def _with_marks(
        self, pivot: Pivot | None, batches: Sequence[Batch], marks: Sequence[Mark]
    ) -> list[Batch]:
        """One batch more. What was decided at this very chain before, for a retry, becomes part of it."""
        key = self.situation.conversation.key.hex()
        older = [batch for batch in batches if batch.key != key]
        view = make_view(pivot, older)
        merged = make_view(pivot, batches).marks | {mark.position: mark for mark in marks}
        decided = tuple(mark for position, mark in merged.items() if view.marks.get(position) != mark)
        return [*older, self._batch(view, decided)]

    def _batch(self, view: View, marks: tuple[Mark, ...]) -> Batch:
        conversation = self.situation.conversation
        after = View(view.pivot, view.marks | {mark.position: mark for mark in marks})
        saved = sum(
            self.weights.shown(view, mark.position, mark.position + 1)
            - self.weights.shown(after, mark.position, mark.position + 1)
            for mark in marks
        )
        return Batch(
            owner=self.situation.owner,
            key=conversation.key.hex(),
            length=len(conversation.messages),
            placeholder=self.situation.policy.pruning.placeholder,
            marks=marks,
            saved_tokens=int(saved),
        )

    def _received(self, pivot: Pivot | None, batches: Sequence[Batch], estimate: Estimate) -> int:
        if pivot is None and not batches:
            return estimate.tokens
        return max(estimate.tokens, int(self.weights.total(View(None, {}))))

    def _say_what_does_not_fit(self, estimate: Estimate, context: int) -> str:
        parts = {
            "leading block and tools": self.environment,
            "opening": self.opening,
            "open group": int(sum(self.tokens[find_open_group(self.situation.conversation) :])),
        }
        largest = max(parts, key=lambda part: parts[part])
        return f"about {estimate.tokens} of {context} tokens; largest fixed part: {largest}, {parts[largest]}"


def _shows(batch: Batch, pivot: Pivot | None) -> bool:
    """Is anything of it left to see behind the pivot? Otherwise it is carried along no further."""
    return pivot is None or any(mark.position >= pivot.covers for mark in batch.marks)
