"""What is sent for one request: the pivot, the marks and the recalls, and the room for the reply.

Makes the plan of what `decision` has chosen. Upstreams refuse requests with `prompt + requested output >
window`. Clamping the requested output is better than compacting at half a window because a client asked for
32,000 tokens.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import find_open_group
from gateway.core.history.pivot import Batch, Pivot, Recall
from gateway.core.history.view import View, is_sent, make_view
from gateway.core.limits.thresholds import SmallWindow, Thresholds, cap_minimum_reply, find_small_window
from gateway.core.sizing.estimate import Estimate

# A shorter reply is of no use to an agent.
SMALLEST_REPLY_TOKENS: Final = 1_024
# Room for chat templates and hidden turns, which no estimate includes.
SLACK_TOKENS: Final = 64


def choose_output(
    requested: int | None, context: int | None, estimate: Estimate, minimum_reply: int = 0
) -> int | None:
    """The number of tokens to request instead; None if the request needs no change or has no number.

    It is never above the requested one, nor below SMALLEST_REPLY_TOKENS or `minimum_reply`
    (`cap_minimum_reply`).
    """
    if requested is None or context is None:
        return None
    left = context - estimate.tokens - estimate.unsure - SLACK_TOKENS
    if requested <= left:
        return None
    clamped = max(left, find_least_output(requested, context, minimum_reply))
    return clamped if clamped < requested else None


def find_least_output(requested: int | None, context: int, minimum_reply: int = 0) -> int:
    """The shortest reply that may be requested instead. What the client asks for is enough."""
    least = max(SMALLEST_REPLY_TOKENS, cap_minimum_reply(minimum_reply, context))
    return min(requested or least, least)


# A warning names so many messages.
_MOST_NAMED: Final = 8
# As the header `x-gateway-plan` and the admin API name it.
PlanName = Literal["passthrough", "pruned", "pivot", "pivot+pruned", "digest", "cut"]


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
    # Says what was cut, or does not fit the window; None if all leaves whole and fits.
    warning: str | None = None
    # Estimated tokens of `received` that were cut out of the client's messages. They are not savings.
    cut: int = 0
    # Set if the conversation is compacted too often because its window is too small for it.
    small_window: SmallWindow | None = None
    # All active recalls, `new_recall` among them: the one that this request or its reply brought.
    recalls: tuple[Recall, ...] = ()
    new_recall: Recall | None = None

    @property
    def parts(self) -> tuple[Pivot | Batch | Recall, ...]:
        """All that stands in place of, or is put between, what the client sent."""
        pivot = () if self.pivot is None else (self.pivot,)
        return (*pivot, *self.batches, *self.recalls)

    @property
    def view(self) -> View:
        return make_view(self.pivot, self.batches, self.recalls)

    @property
    def name(self) -> PlanName:
        if describe_cut(self.pivot, self.batches) is not None:
            return "cut"
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


def make_active_plan(situation: Situation) -> Plan:
    """Sends what is active: the pivot, the marks and the recalls that were sent before."""
    return make_plan(situation, situation.sticky, situation.batches, None)


def make_plan(
    situation: Situation, pivot: Pivot | None, batches: Sequence[Batch], thresholds: Thresholds | None
) -> Plan:
    """thresholds: None if no limit is known."""
    # One that marks only what the pivot covers is dropped.
    batches = [batch for batch in batches if any(is_sent(pivot, mark.position) for mark in batch.marks)]
    view = situation.view(pivot, batches)
    # The pivot stands for what is before its end.
    recalls = tuple([recall for recall in situation.recalls if recall.position >= view.start])
    estimate = situation.estimate(view)
    context = thresholds.context if thresholds is not None else None
    fits = context is None or estimate.tokens + find_least_output(situation.requested, context) <= context
    excess = None if fits else _describe_excess(situation, estimate, context)
    received = estimate.tokens
    if pivot is not None or batches or recalls:
        received = max(received, int(situation.calibrated.total(View(None, {}))))
    # A reply needs room in tokens only: bytes and pictures do not count.
    true, in_tokens = situation.in_tokens, situation.estimate_tokens(view)
    window = context if true is None else true.limits.context
    return Plan(
        pivot=pivot,
        batches=tuple(batches),
        new_batch=next((batch for batch in batches if batch not in situation.batches), None),
        received=received,
        sent=estimate.tokens,
        output=choose_output(situation.requested, window, in_tokens, situation.minimum_reply),
        warning="; ".join(filter(None, (describe_cut(pivot, batches), excess))) or None,
        cut=min(_count_cut(situation, pivot, batches), max(0, received - estimate.tokens)),
        small_window=_find_small_window(situation) if pivot is not None else None,
        recalls=recalls,
        new_recall=situation.new_recall if situation.new_recall in recalls else None,
    )


def describe_cut(pivot: Pivot | None, batches: Sequence[Batch]) -> str | None:
    """Says that messages of the client's leave cut; None if there are none. Of what the pivot covers nothing
    leaves.
    """
    if pivot is None and not batches:
        return None
    positions = {mark.position for batch in batches if batch.is_cut for mark in batch.marks}
    if pivot is not None:
        positions = {position for position in positions if is_sent(pivot, position)}
    if not positions:
        return None
    numbers = ", ".join(str(position + 1) for position in sorted(positions)[:_MOST_NAMED])
    more = " and more" if len(positions) > _MOST_NAMED else ""
    return f"cut in the middle, because the upstream refused it as too long: message {numbers}{more}"


def _count_cut(situation: Situation, pivot: Pivot | None, batches: Sequence[Batch]) -> int:
    if not any(batch.is_cut for batch in batches):
        return 0
    whole = situation.view(pivot, [batch for batch in batches if not batch.is_cut])
    calibrated = situation.calibrated
    return ceil(calibrated.total(whole) - calibrated.total(situation.view(pivot, batches)))


def _find_small_window(situation: Situation) -> SmallWindow | None:
    """None if the window is large enough, and where something else fills it: bytes, pictures.

    Behind a refusal the window is scaled to our own count, so it is not the one to tell.
    """
    if (
        situation.in_tokens is not None
        or situation.refused is not None
        or not situation.policy.compaction.auto
    ):
        return None
    opening = situation.opening_tokens if situation.policy.keep.opening else 0
    floor = int(situation.calibrated.environment) + opening
    return find_small_window(situation.policy, situation.limits, situation.size, floor)


def _describe_excess(situation: Situation, estimate: Estimate, context: int | None) -> str:
    open_group = find_open_group(situation.conversation)
    parts = {
        "leading block and tools": int(situation.calibrated.environment),
        "opening": situation.opening_tokens,
        "open group": int(sum(situation.calibrated.messages[open_group:])),
    }
    fixed = parts["leading block and tools"]
    if context is not None and fixed + find_least_output(situation.requested, context) > context:
        share = f"{fixed / 1000:.1f}k of {context / 1000:.1f}k"
        return f"system prompt and tools take {share} tokens: there is nothing to replace"
    largest = max(parts, key=lambda part: parts[part])
    return f"about {estimate.tokens} of {context} tokens; largest fixed part: {largest}, {parts[largest]}"


# Of a plan that changes nothing.
UNCHANGED: Final = ""


def fingerprint_plan(plan: Plan) -> str:
    """The length of the reply does not count: it is not a part of the history."""
    if plan.pivot is None and not plan.batches and not plan.recalls:
        return UNCHANGED
    state = hashlib.sha256()
    pivot = plan.pivot
    if pivot is not None:
        state.update(repr((pivot.key, pivot.covers, pivot.opening_end, pivot.created_seconds)).encode())
        texts = (pivot.question, pivot.text, pivot.resume)
        state.update(repr(texts).encode("utf-8", "surrogatepass"))
    for batch in plan.batches:
        state.update(repr((batch.key, batch.placeholder, batch.marks)).encode("utf-8", "surrogatepass"))
    for recall in plan.recalls:
        state.update(repr((recall.key, recall.position)).encode())
    return state.hexdigest()
