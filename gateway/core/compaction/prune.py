"""Which old tool results to clear or shorten (000, 003 and 004 in docs/sources.md), and what is cut in the
middle, visibly, if the upstream has refused it.

A marked result stays marked: sending it in full again would break the cached prefix a second time. Cutting is
the last resort, only for a request that was refused and would be refused again after everything else.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.core.compaction.plan import SLACK_TOKENS, find_least_output
from gateway.core.compaction.situation import RefusedRequest, Situation
from gateway.core.history.conversation import Conversation, find_open_group, find_tool_names
from gateway.core.history.pivot import Batch, Mark, Pivot
from gateway.core.history.view import CLEARED_TOKENS, FRAME_TOKENS, Size, View, is_sent, make_view
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import Thresholds
from gateway.core.policy import Pruning
from gateway.core.sizing.calibrated_sizes import CalibratedSizes

# A text that is cut further would say nothing.
_SHORTEST_CHARS: Final = 256
# The middle of a text may have fewer tokens than the rest of it.
_CUT_ROOM: Final = 0.98
# Of what was refused without a number.
_SMALLER: Final = 0.9


def count_allowed(situation: Situation, thresholds: Thresholds, refused: RefusedRequest) -> float:
    """Our tokens that fit, the first of these that is known.

    1. By the numbers of the refusal: how many were too many, of how many. 2. By our own count, if that is
    more than the window holds. 3. A tenth less than was refused, and no more than the hard threshold.
    """
    overflow = refused.overflow
    refused_tokens = situation.estimate(refused.view).tokens
    counted = overflow.prompt_tokens or overflow.used
    room = _find_room(situation, Limits(context=overflow.context, input=overflow.input))
    if counted is not None and room is not None and room < counted and situation.in_tokens is None:
        return _CUT_ROOM * room * refused_tokens / counted
    room = _find_room(situation, situation.limits)
    if room is not None and _CUT_ROOM * room < refused_tokens and situation.in_tokens is None:
        return _CUT_ROOM * room
    return min(_SMALLER * refused_tokens, thresholds.hard)


def choose_shortening(
    conversation: Conversation,
    calibrated: CalibratedSizes,
    view: View,
    excess_tokens: float,
    positions: Container[int] | None = None,
) -> tuple[Mark, ...]:
    """Marks that save so many true tokens, with the largest length that suffices.

    None if no length suffices, and where nothing has to be saved. positions: of the messages that may be cut;
    None for all.
    """
    sizes = calibrated.sizes.messages
    candidates = [
        position
        for position in range(len(sizes))
        if is_sent(view.pivot, position) and conversation.messages[position].role in ("user", "tool")
        if positions is None or position in positions
    ]
    whole = calibrated.total(view)

    def suffices(length: int) -> bool:
        marks = _find_marks(candidates, sizes, view, length)
        after = view._replace(marks=view.marks | {mark.position: mark for mark in marks})
        return whole - calibrated.total(after) >= excess_tokens

    least, most = _SHORTEST_CHARS, max((sizes[at].chars for at in candidates), default=0)
    if excess_tokens <= 0 or not suffices(least):
        return ()
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if suffices(middle) else (least, middle)
    return _find_marks(candidates, sizes, view, least)


def _find_room(situation: Situation, limits: Limits) -> int | None:
    """Tokens for a prompt; None if they are not known. The reply gives way first."""
    rooms = [limits.input] if limits.input else []
    if context := limits.context:
        rooms.append(context - find_least_output(situation.requested, context, situation.minimum_reply))
    return min(rooms) - SLACK_TOKENS if rooms else None


def _find_marks(
    candidates: Sequence[int], sizes: Sequence[Size], view: View, length: int
) -> tuple[Mark, ...]:
    """Marks for the longer texts."""
    shorter = {at for at, mark in view.marks.items() if mark.keep_chars is None or mark.keep_chars <= length}
    return tuple(Mark(at, length) for at in candidates if sizes[at].chars > length and at not in shorter)


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
    return batches if is_enough or pruning.eager or pruning.partial else None


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
    after = view._replace(marks=view.marks | {mark.position: mark for mark in decided})
    shown, positions = situation.calibrated.shown, [mark.position for mark in decided]
    saved = sum(shown(view, at, at + 1) - shown(after, at, at + 1) for at in positions)
    batch = Batch(
        owner=situation.owner,
        key=key,
        length=len(situation.conversation.messages),
        placeholder=situation.policy.pruning.placeholder,
        marks=decided,
        saved_tokens=int(saved),
        is_cut=is_cut,
    )
    return [*older, batch]


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
    # If there is no limit, a picture without text is cleared, too.
    least_chars = max(pruning.over_chars, pruning.keep_chars or 0)
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
        if is_prunable and is_old and is_large and (not least_chars or size.chars > least_chars):
            chosen.append(position)
    worth = sum(tokens[at] * _saved_share(calibrated.sizes.messages[at], pruning) for at in chosen)
    return tuple(reversed(chosen)) if worth > thresholds.minimum else ()


def _measure_messages(calibrated: CalibratedSizes, pruning: Pruning) -> list[float]:
    """The tokens of each message, calibrated or by the estimator alone."""
    tokens = list(calibrated.messages)
    if not pruning.calibrated:
        tokens = [float(max(0, size.tokens - FRAME_TOKENS)) for size in calibrated.sizes.messages]
    most = pruning.part_tokens
    return tokens if most is None else [min(each, most) for each in tokens]


def _is_protected(tools: Sequence[str], pruning: Pruning) -> bool:
    """Whether a tool is protected; results of several tools in one message are protected together."""
    return any(
        tool in pruning.protected_tools or tool.startswith(pruning.protected_prefixes) for tool in tools
    )


def _saved_share(size: Size, pruning: Pruning) -> float:
    """The source documents count a cleared result completely, without its placeholder."""
    cut = 1.0 if pruning.keep_chars is None else 1.0 - pruning.keep_chars / max(size.chars, 1)
    return cut * _removable_share(size)


def _removable_share(size: Size) -> float:
    """The part of a message that marks can remove, if it contains more than results."""
    return size.removable / max(size.tokens, 1)


def _find_candidates(conversation: Conversation, view: View, pruning: Pruning) -> frozenset[int]:
    """Positions of tool results that may be pruned. A message of the model never is one, even if it contains
    a result of the upstream's own tools.
    """
    messages, turns, found = conversation.messages, 0, []
    end = min(find_open_group(conversation), len(messages) - pruning.keep_messages)
    for position in range(len(messages) - 1, view.start - 1, -1):
        role, has_results = messages[position].role, bool(messages[position].results)
        if has_results and role != "assistant" and turns >= pruning.keep_turns and position < end:
            found.append(position)
        turns += role == "user" and not has_results
    return frozenset(found)
