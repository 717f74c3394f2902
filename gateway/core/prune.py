"""Which old tool results are worth forgetting? Document 000 §5.

Knows positions and sizes. A result that is marked stays marked: sending it in full again would break the
prefix a second time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.conversation import Conversation, find_open_group, find_tool_names
from gateway.core.policy import Pruning
from gateway.core.view import CLEARED_TOKENS, View


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """protect: newest tool output that stays. minimum: smallest batch worth a break of the prefix. Tokens."""

    protect: int
    minimum: int


def choose_thresholds(pruning: Pruning, hard_tokens: int) -> Thresholds:
    return Thresholds(
        protect=int(min(pruning.protect_tokens, pruning.protect_ratio * hard_tokens)),
        minimum=int(min(pruning.minimum_tokens, pruning.minimum_ratio * hard_tokens)),
    )


def choose_results(
    conversation: Conversation,
    tokens: Sequence[float],
    view: View,
    pruning: Pruning,
    thresholds: Thresholds,
) -> tuple[int, ...]:
    """Positions to clear, oldest first; none if they are not worth a batch.

    Walks from the newest result to the oldest: skips the open group, the newest `keep_turns` user turns and
    protected tools; stops at the pivot and at a result already marked; protects the newest tokens.
    """
    names = find_tool_names(conversation)
    chosen: list[int] = []
    seen = 0.0
    for position in _walk_back(conversation, view, pruning.keep_turns):
        if position in view.marks:
            break
        if names[position] in pruning.protected_tools:
            continue
        seen += tokens[position]
        if seen > thresholds.protect and tokens[position] > CLEARED_TOKENS:
            chosen.append(position)
    worth = sum(tokens[position] for position in chosen)
    return tuple(reversed(chosen)) if worth > thresholds.minimum else ()


def _walk_back(conversation: Conversation, view: View, keep_turns: int) -> list[int]:
    """Positions of tool results that may be pruned at all, newest first."""
    messages = conversation.messages
    turns = 0
    found = []
    open_group = find_open_group(conversation)
    for position in range(len(messages) - 1, view.start - 1, -1):
        if messages[position].role == "user" and not messages[position].results:
            turns += 1
        elif messages[position].results and turns >= keep_turns and position < open_group:
            found.append(position)
    return found
