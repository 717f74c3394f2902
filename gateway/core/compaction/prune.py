"""Which old tool results to clear or shorten (000, 003 and 004 in docs/sources.md).

Knows positions and sizes. A marked result stays marked: sending it in full again would break the cached
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
    """Tokens."""

    # The newest tool output, which is not touched.
    protect: int
    # The smallest batch that is worth breaking the cached prefix for.
    minimum: int


def choose_prune_thresholds(pruning: Pruning, hard_tokens: int) -> PruneThresholds:
    return PruneThresholds(
        protect=int(min(pruning.protect_tokens, pruning.protect_ratio * hard_tokens)),
        minimum=int(min(pruning.minimum_tokens, pruning.minimum_ratio * hard_tokens)),
    )


def choose_results(
    conversation: Conversation,
    calibrated: CalibratedSizes,
    view: View,
    pruning: Pruning,
    thresholds: PruneThresholds,
) -> tuple[int, ...]:
    """Positions to shorten, the oldest first; none if they are not worth a batch.

    Goes from the newest message to the oldest. It skips the open group, the newest `keep_turns` user turns
    and `keep_messages`, and protected tools; it stops at the pivot and at a result that is already marked.
    The newest tokens, of results or of everything, are protected.
    """
    tokens = _measure_messages(calibrated, pruning)
    names = find_tool_names(conversation)
    candidates = _find_candidates(conversation, view, pruning)
    chosen: list[int] = []
    seen = 0.0
    for position in range(len(tokens) - 1, view.start - 1, -1):
        if position in candidates and position in view.marks:
            break
        is_prunable = position in candidates and not _is_protected(names[position], pruning)
        if not is_prunable and pruning.protects == "results":
            continue
        before, seen = seen, seen + tokens[position]
        is_old = before >= thresholds.protect if pruning.overshoot else seen > thresholds.protect
        size = calibrated.sizes.messages[position]
        is_large = tokens[position] * _removable_share(size) > CLEARED_TOKENS
        if is_prunable and is_old and is_large and _is_long(size, pruning):
            chosen.append(position)
    worth = sum(tokens[at] * _saved_share(calibrated.sizes.messages[at], pruning) for at in chosen)
    return tuple(reversed(chosen)) if worth > thresholds.minimum else ()


def _measure_messages(calibrated: CalibratedSizes, pruning: Pruning) -> list[float]:
    """The tokens of each message, calibrated or by the estimator alone."""
    if pruning.calibrated:
        tokens = list(calibrated.messages)
    else:
        tokens = [float(max(0, size.tokens - FRAME_TOKENS)) for size in calibrated.sizes.messages]
    most = pruning.part_tokens
    return tokens if most is None else [min(each, most) for each in tokens]


def _is_protected(tools: Sequence[str], pruning: Pruning) -> bool:
    """Whether a tool is protected; results of several tools in one message are protected together."""
    return any(
        tool in pruning.protected_tools or tool.startswith(pruning.protected_prefixes) for tool in tools
    )


def _is_long(size: Size, pruning: Pruning) -> bool:
    """Whether the texts are long enough; if there is no limit, a picture without text is cleared, too."""
    least = max(pruning.over_chars, pruning.keep_chars or 0)
    return not least or size.chars > least


def _saved_share(size: Size, pruning: Pruning) -> float:
    """The source documents count a cleared result completely, without its placeholder."""
    cut = 1.0 if pruning.keep_chars is None else 1.0 - pruning.keep_chars / max(size.chars, 1)
    return cut * _removable_share(size)


def _removable_share(size: Size) -> float:
    """The part of a message that marks can remove, if it contains more than results."""
    return size.removable / max(size.tokens, 1)


def _is_result(message: Message) -> bool:
    """A message of the model is never shortened, even if it contains a result of the upstream's own tools."""
    return bool(message.results) and message.role != "assistant"


def _find_candidates(conversation: Conversation, view: View, pruning: Pruning) -> frozenset[int]:
    """Positions of tool results that may be pruned."""
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
