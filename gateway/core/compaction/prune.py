"""Which old tool results are worth forgetting? Documents 000 §5, 003 §9 and 004.

Knows positions and sizes. A result that is marked stays marked: sending it in full again would break the
prefix a second time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.history.conversation import Conversation, find_open_group, find_tool_names
from gateway.core.history.message import Message
from gateway.core.history.view import CLEARED_TOKENS, FRAME_TOKENS, Size, View
from gateway.core.policy import Pruning
from gateway.core.sizing.calibrated_sizes import CalibratedSizes


@dataclass(frozen=True, kw_only=True, slots=True)
class PruneThresholds:
    """protect: newest tool output that stays. minimum: smallest batch worth a break of the prefix. Tokens."""

    protect: int
    minimum: int


def choose_prune_thresholds(pruning: Pruning, hard_tokens: int) -> PruneThresholds:
    return PruneThresholds(
        protect=int(min(pruning.protect_tokens, pruning.protect_ratio * hard_tokens)),
        minimum=int(min(pruning.minimum_tokens, pruning.minimum_ratio * hard_tokens)),
    )


def choose_results(
    conversation: Conversation,
    weights: CalibratedSizes,
    view: View,
    pruning: Pruning,
    thresholds: PruneThresholds,
) -> tuple[int, ...]:
    """Positions to shorten, oldest first; none if they are not worth a batch.

    Walks from the newest message to the oldest: skips the open group, the newest `keep_turns` user turns and
    `keep_messages`, and protected tools; stops at the pivot and at a result already marked; protects the
    newest tokens, of results or of everything.
    """
    tokens = _weigh(weights, pruning)
    names = find_tool_names(conversation)
    walked = _find_walked(conversation, view, pruning)
    chosen: list[int] = []
    seen = 0.0
    for position in range(len(tokens) - 1, view.start - 1, -1):
        if position in walked and position in view.marks:
            break
        is_prunable = position in walked and not _is_protected(names[position], pruning)
        if not is_prunable and pruning.protects == "results":
            continue
        before, seen = seen, seen + tokens[position]
        is_old = before >= thresholds.protect if pruning.overshoot else seen > thresholds.protect
        size = weights.sizes.messages[position]
        is_large = tokens[position] * _removable_share(size) > CLEARED_TOKENS
        if is_prunable and is_old and is_large and _is_long(size, pruning):
            chosen.append(position)
    worth = sum(tokens[at] * _saved_share(weights.sizes.messages[at], pruning) for at in chosen)
    return tuple(reversed(chosen)) if worth > thresholds.minimum else ()


def _weigh(weights: CalibratedSizes, pruning: Pruning) -> list[float]:
    """Each message by what upstream counts for it, or by the estimate of its words alone."""
    if pruning.calibrated:
        tokens = list(weights.messages)
    else:
        tokens = [float(max(0, size.tokens - FRAME_TOKENS)) for size in weights.sizes.messages]
    most = pruning.part_tokens
    return tokens if most is None else [min(each, most) for each in tokens]


def _is_protected(tools: Sequence[str], pruning: Pruning) -> bool:
    """Results of several tools in one message are protected together."""
    return any(
        tool in pruning.protected_tools or tool.startswith(pruning.protected_prefixes) for tool in tools
    )


def _is_long(size: Size, pruning: Pruning) -> bool:
    """A picture has no characters; cleared it gets shorter all the same."""
    least = max(pruning.over_chars, pruning.keep_chars or 0)
    return not least or size.chars > least


def _saved_share(size: Size, pruning: Pruning) -> float:
    """The documents count a cleared result as a whole, its placeholder aside."""
    cut = 1.0 if pruning.keep_chars is None else 1.0 - pruning.keep_chars / max(size.chars, 1)
    return cut * _removable_share(size)


def _removable_share(size: Size) -> float:
    """Of a message that holds more than results: what of it marks may take."""
    return size.removable / max(size.tokens, 1)


def _is_result(message: Message) -> bool:
    """What the model said is never shortened, not even where it holds a result of upstream's own tools."""
    return bool(message.results) and message.role != "assistant"


def _find_walked(conversation: Conversation, view: View, pruning: Pruning) -> frozenset[int]:
    """Positions of tool results that may be pruned at all."""
    messages = conversation.messages
    turns = 0
    found = []
    end = min(find_open_group(conversation), len(messages) - pruning.keep_messages)
    for position in range(len(messages) - 1, view.start - 1, -1):
        if messages[position].role == "user" and not messages[position].results:
            turns += 1
        elif _is_result(messages[position]) and turns >= pruning.keep_turns and position < end:
            found.append(position)
    return frozenset(found)
