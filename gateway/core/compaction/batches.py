"""Whether another batch of old tool results is worth shortening, and what it saves.

Without prices, a batch is worth it by its size. Where a policy knows what tokens cost, pruning stands against
a summary: it keeps the messages, but sends everything behind the first of them again.
"""

from collections.abc import Sequence
from dataclasses import replace

from gateway.core.compaction.prune import choose_prune_thresholds, choose_results
from gateway.core.compaction.situation import Situation
from gateway.core.economy import choose_smallest_batch, is_pruning_cheaper, size_up
from gateway.core.history.pivot import Batch, Mark, Pivot
from gateway.core.history.view import View, make_view
from gateway.core.limits.thresholds import Thresholds


def choose_batches(
    situation: Situation, thresholds: Thresholds, current_tokens: int
) -> Sequence[Batch] | None:
    """The batches with one more, if that is worth it, and is enough or the policy is eager or partial."""
    pruning, is_free = situation.policy.pruning, changes_for_free(situation)
    is_time = pruning.eager or is_free or current_tokens > thresholds.soft
    if not situation.policy.compaction.prune or not is_time:
        return None
    view = situation.view(situation.sticky, situation.batches)
    prune_thresholds = choose_prune_thresholds(pruning, thresholds.hard)
    positions = choose_results(situation.conversation, situation.calibrated, view, pruning, prune_thresholds)
    if not positions:
        return None
    marks = [Mark(position, pruning.keep_chars) for position in positions]
    batches = with_marks(situation, situation.sticky, situation.batches, marks)
    if is_free:
        return batches
    saved = sum(batch.saved_tokens for batch in batches if batch not in situation.batches)
    is_enough = current_tokens - saved <= thresholds.target
    if not (is_enough or pruning.eager or pruning.partial):
        return None
    is_cheap = _is_cheaper_than_a_summary(situation, thresholds, current_tokens, saved, positions[0])
    return batches if is_cheap else None


def changes_for_free(situation: Situation) -> bool:
    """Whether another prefix costs no more than the same one: the provider's cache has lost it in any case.

    Only policies that know what tokens cost make use of that.
    """
    return situation.is_cold and situation.policy.economy > 0


def with_marks(
    situation: Situation,
    pivot: Pivot | None,
    batches: Sequence[Batch],
    marks: Sequence[Mark],
    *,
    is_cut: bool = False,
) -> list[Batch]:
    """The batches and one with these marks.

    A batch that was decided at this very request before, for a retry, is merged with the new one. is_cut: see
    Batch.
    """
    key = situation.conversation.key.hex()
    older = [batch for batch in batches if batch.key != key]
    is_cut = is_cut or any(batch.is_cut for batch in batches if batch.key == key)
    view = make_view(pivot, older)
    merged = make_view(pivot, batches).marks | {mark.position: mark for mark in marks}
    decided = tuple(mark for position, mark in merged.items() if view.marks.get(position) != mark)
    return [*older, replace(_make_batch(situation, view, decided), is_cut=is_cut)]


def _is_cheaper_than_a_summary(
    situation: Situation, thresholds: Thresholds, current_tokens: int, saved_tokens: int, first: int
) -> bool:
    """first: position of the first pruned result. Always true without prices, for a model that costs nothing,
    without a summarizer, and for a policy whose method is to prune.
    """
    policy, ledger, rates = situation.policy, situation.ledger, situation.rates
    has_summarizer = situation.may_compact and policy.summary.method == "model"
    if not policy.economy or rates.is_free or policy.pruning.eager or not has_summarizer:
        return True
    if ledger is None or not ledger.base_tokens:
        return True
    if saved_tokens < choose_smallest_batch(rates, current_tokens, situation.growth):
        return False
    view = situation.view(situation.sticky, situation.batches)
    behind = situation.calibrated.shown(view, first, len(situation.conversation.messages))
    sizes = size_up(ledger, current_tokens, thresholds.tail, situation.growth)
    sizes = replace(sizes, may_ride=situation.rides)
    return is_pruning_cheaper(rates, sizes, saved_tokens, behind)


def _make_batch(situation: Situation, view: View, marks: tuple[Mark, ...]) -> Batch:
    conversation, calibrated = situation.conversation, situation.calibrated
    after = View(view.pivot, view.marks | {mark.position: mark for mark in marks})
    saved = sum(
        calibrated.shown(view, mark.position, mark.position + 1)
        - calibrated.shown(after, mark.position, mark.position + 1)
        for mark in marks
    )
    return Batch(
        owner=situation.owner,
        key=conversation.key.hex(),
        length=len(conversation.messages),
        placeholder=situation.policy.pruning.placeholder,
        marks=marks,
        saved_tokens=int(saved),
    )
