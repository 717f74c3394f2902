"""What a response adds to the ledger of its branch, and whether a compaction is due for that reason alone."""

from dataclasses import replace
from typing import Final

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.summary_model import wants_riding
from gateway.core.economy import (
    AnsweredTurn,
    Rates,
    find_ledger,
    is_due,
    note_response,
    note_time,
    shows_cache,
    size_up,
    with_cache,
)
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.head import Head
from gateway.core.sizing.usage import Usage

_GOING_ON: Final = ("main", "agent")


def update_ledger(turn: Turn, plan: Plan, usage: Usage | None, now_seconds: float) -> BranchLedger:
    """The ledger after a response."""
    before = find_ledger(turn.head, turn.scope)
    if usage is None:
        return note_time(before, now_seconds)
    pivot = plan.pivot.key if plan.pivot is not None else None
    needs_base = before is None or not before.base_tokens or before.pivot != pivot
    answered = AnsweredTurn(
        usage=usage,
        pivot=pivot,
        pivot_tokens=plan.pivot.tokens if plan.pivot is not None else 0,
        fixed_tokens=_estimate_fixed(turn, plan, usage.prompt_tokens) if needs_base else 0.0,
        tail_tokens=turn.thresholds.tail if turn.thresholds is not None else 0,
    )
    return note_response(before, answered, _choose_rent_rates(turn, usage), now_seconds)


def _choose_rent_rates(turn: Turn, usage: Usage) -> Rates:
    """The rates of an answered request, by what its own usage tells of a cache.

    The cache of another model is empty at its first request, whose usage tells nothing. Until the next one,
    that of the model before is the best guess.
    """
    known = turn.head.ledger if turn.head is not None else None
    is_cached = shows_cache(usage) or (known is not None and known.has_cached)
    return with_cache(turn.rates) if is_cached else turn.rates


def is_compaction_due(turn: Turn, head: Head) -> bool:
    """Whether old messages have cost as much as folding them. head: of the answered request.

    Never after a title or the client's own summary: such a history is not continued.
    """
    policy, ledger, thresholds = turn.policy, head.ledger, turn.thresholds
    if not (policy.economy and policy.compaction.auto) or turn.purpose not in _GOING_ON:
        return False
    if ledger is None or thresholds is None:
        return False
    sizes = size_up(ledger, head.total_tokens, thresholds.tail, head.growth_tokens)
    rates = with_cache(turn.rates) if ledger.has_cached else turn.rates
    if not is_due(policy.economy, ledger, rates, sizes):
        return False
    # Looked at last, because it reads the prompts, and quoting is never cheaper.
    quoted = replace(sizes, may_ride=wants_riding(policy, turn.model, turn.upstream.name))
    return is_due(policy.economy, ledger, rates, quoted)


def _estimate_fixed(turn: Turn, plan: Plan, prompt_tokens: int) -> float:
    """The tokens of everything up to the end of the opening, by its share of what came in. Needed once."""
    conversation = turn.received.conversation
    behind = sum(message.size_bytes for message in conversation.messages[conversation.opening_end :])
    received_tokens = prompt_tokens + plan.received - plan.sent
    return received_tokens * max(0.0, 1.0 - behind / max(1, len(turn.received.body.data)))
