"""A conversation whose provider caches its prompts, under a policy whose summaries ride."""

from typing import Any

from gateway.conversations.turn import Turn
from gateway.core.economy import Rates
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.limits.model_limits import Limits
from gateway.core.policy import Policy, Prompts
from tests.builders.compaction import CompactionParts, receive, turn_of
from tests.decisions.parts import head_of

_PROMPTS = Prompts(
    question="What did we do?",
    instruction="Summarize.\n\n## Goal\nWhat?\n\n## Next\nThen?",
    resume="Go on.",
    ride="Stop. {kept} stay.",
    dropped="(dropped)",
)
RIDING = Policy(prompts=_PROMPTS)
CACHED = Rates(read=0.1)
RIDDEN = receive(6)
_LIMITS = Limits(context=64_000)


def turn_with(policy: Policy = RIDING, limits: Limits = _LIMITS, **fields: Any) -> Turn:
    return turn_of(RIDDEN, policy, limits, **({"rates": CACHED} | fields))


def note_answer(parts: CompactionParts, age_seconds: float = 0.0, **fields: Any) -> None:
    """The conversation's newest response ended so long ago."""
    head = head_of(RIDDEN, **fields)
    head.ledger = BranchLedger(answered_seconds=parts.clock() - age_seconds)
    parts.state.heads.hold(head)
