"""Where to cut: which messages a new summary covers, and how much of it the summary may say.

Knows sizes and lines. Never cuts inside an atomic group.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.compaction.shorten import choose_opening_chars
from gateway.core.history.conversation import Conversation, find_replaceable_start, is_boundary
from gateway.core.history.pivot import Pivot
from gateway.core.limits.thresholds import Thresholds
from gateway.core.policy import Keep
from gateway.core.sizing.calibrated_sizes import CalibratedSizes

# A prepared compaction must be worth its call: it frees at least this share of the hard line.
WORTHWHILE_SHARE = 0.05
# One without which the request is refused may free less, but not nothing.
NEEDED_SHARE = 0.02
# "smaller than what it replaces by >= 10 %" (DESIGN §6).
SMALLER_SHARE = 0.9
# What gives way last still keeps this share of the window: the opening, then the summary.
_SMALLEST_SHARE = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """What one compaction does. Positions and true tokens.

    base: the pivot whose summary the new one updates. start, covers: the positions that the summary replaces.
    folded: tokens it replaces. cap: most it may hold. opening_chars: as in Pivot.
    """

    base: Pivot | None
    start: int
    covers: int
    replaced_tokens: int
    cap_tokens: int
    opening_chars: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CutConstraints:
    """What is fixed. base: the pivot to build on, None for the first one.

    must_keep: position from which everything stays, whatever its size. lead: true tokens that the
    conversation will still grow before the cut is applied; they become tail too.
    """

    base: Pivot | None
    must_keep: int
    lead: int = 0


def choose_cut(
    conversation: Conversation, weights: CalibratedSizes, lines: Thresholds, keep: Keep, parts: CutConstraints
) -> Cut | None:
    """The cut that leaves the largest tail within its budget, or None where there is nothing to fold.

    A tail of messages may go half the way from the target to the hard line; a larger one is cut down to the
    target, or each turn would compact.
    What gives way where not all fits, in this order: tail beyond the open group, opening beyond its share,
    cap.
    """
    tokens, environment = weights.messages, weights.environment
    opening_end = find_replaceable_start(conversation, keeps_opening=keep.opening)
    opening = sum(tokens[:opening_end])
    room = lines.target - environment - min(opening, lines.opening) - lines.summary
    budget = min(lines.tail, room) - parts.lead
    covers = _choose_position(conversation, tokens, budget, parts.must_keep)
    if keep.tail_messages:
        wanted = _back_to_boundary(conversation, len(tokens) - keep.tail_messages)
        most = room + (lines.hard - lines.target) / 2
        if sum(tokens[wanted:]) > most - parts.lead:
            wanted = _forward_until_it_fits(
                conversation, tokens, (wanted, parts.must_keep), room - parts.lead
            )
        covers = min(covers, wanted)
    base = parts.base
    start = max(base.covers if base else 0, opening_end)
    if covers <= start:
        return None
    left = lines.hard - environment - sum(tokens[covers:])
    smallest = _SMALLEST_SHARE * lines.window
    kept = min(opening, max(min(lines.opening, left - lines.summary), smallest))
    return Cut(
        base=base,
        start=start,
        covers=covers,
        replaced_tokens=int(sum(tokens[start:covers]) + (base.tokens * weights.ratio if base else 0)),
        cap_tokens=int(max(min(lines.summary, left - kept), min(lines.summary, smallest))),
        opening_chars=None
        if kept >= opening
        else _choose_opening_chars(weights, opening_end, kept / opening),
    )


def is_worthwhile(cut: Cut, minimum_tokens: float) -> bool:
    """Does the summary free enough, even if it is as long as it may be?"""
    longest = min(cut.cap_tokens, SMALLER_SHARE * cut.replaced_tokens)
    return cut.replaced_tokens - longest >= minimum_tokens


def _choose_position(
    conversation: Conversation, tokens: Sequence[float], budget: float, must_keep: int
) -> int:
    """Walk back over whole groups while they fit the budget."""
    position = must_keep
    kept = sum(tokens[must_keep:])
    at = must_keep
    while at > 0:
        at -= 1
        kept += tokens[at]
        if kept > budget:
            break
        if is_boundary(conversation, at):
            position = at
    return position


def _choose_opening_chars(weights: CalibratedSizes, opening_end: int, share: float) -> int:
    sizes = weights.sizes.messages[:opening_end]
    return choose_opening_chars(sizes, share * sum(size.tokens for size in sizes))


def _back_to_boundary(conversation: Conversation, position: int) -> int:
    position = max(position, 0)
    while position > 0 and not is_boundary(conversation, position):
        position -= 1
    return position


def _forward_until_it_fits(
    conversation: Conversation, tokens: Sequence[float], places: tuple[int, int], budget: float
) -> int:
    """`places`: where the tail should begin, and where it has to begin at the latest."""
    position, must_keep = places
    kept = sum(tokens[position:])
    while position < must_keep and (kept > budget or not is_boundary(conversation, position)):
        kept -= tokens[position]
        position += 1
    return position
