"""Where to cut: which messages a new summary replaces, and how long it may be.

Knows sizes and thresholds. A cut never separates an atomic group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import (
    Conversation,
    find_open_group,
    find_replaceable_start,
    is_boundary,
)
from gateway.core.history.pivot import Pivot
from gateway.core.limits.thresholds import Thresholds
from gateway.core.sizing.calibrated_sizes import CalibratedSizes

# A prepared compaction must be worth its call: it frees at least this share of the hard threshold.
WORTHWHILE_SHARE: Final = 0.05
# A compaction without which the request would be refused may free less.
NEEDED_SHARE: Final = 0.02
# A summary must be at least 10 % smaller than what it replaces.
SMALLER_SHARE: Final = 0.9
# The summary gives way last, and keeps at least this share of the window.
_SMALLEST_SHARE: Final = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """What one compaction does. Tokens are true tokens."""

    # The pivot whose summary the new one updates.
    base: Pivot | None
    # The summary replaces the messages from `start` to `covers`.
    start: int
    covers: int
    # The size of what it replaces.
    replaced_tokens: int
    # The length that a summary is asked for, and that a digest has at most.
    cap_tokens: int
    # What a summary may have beyond its cap. These tokens are meant for turns.
    spare_tokens: int = 0

    @property
    def longest_tokens(self) -> int:
        """The longest summary that is accepted; above it upstream cuts it off."""
        return self.cap_tokens + self.spare_tokens


def choose_cut(
    situation: Situation, thresholds: Thresholds, base: Pivot | None, must_keep: int, lead: int = 0
) -> Cut | None:
    """The cut with the largest tail within its budget, or None if there is nothing to replace.

    base: the pivot to build on, None for the first one. must_keep: everything from this position on stays,
    whatever its size. lead: true tokens by which the conversation will still grow before the cut is applied;
    they become tail, too.

    A tail given in messages may reach halfway from the target to the hard threshold; a larger one is reduced
    to the target, because otherwise every turn would compact. If not everything fits, the tail before the
    open group gives way first, then the summary. The opening stays whole.
    """
    conversation, calibrated, keep = situation.conversation, situation.calibrated, situation.policy.keep
    opening_end = find_replaceable_start(conversation, keeps_opening=keep.opening)
    opening = min(sum(calibrated.messages[:opening_end]), situation.opening_tokens)
    fixed = calibrated.environment + min(opening, thresholds.opening) + thresholds.summary
    covers = _choose_covers(situation, thresholds, thresholds.target - fixed, must_keep, lead)
    start = max(base.covers if base else 0, opening_end)
    if covers <= start:
        return None
    left = thresholds.hard - calibrated.environment - opening - sum(calibrated.messages[covers:])
    smallest = min(thresholds.summary, _SMALLEST_SHARE * thresholds.window)
    cap = int(max(min(thresholds.summary, left), smallest))
    return Cut(
        base=base,
        start=start,
        covers=covers,
        replaced_tokens=sum_replaced(calibrated, base, start, covers),
        cap_tokens=cap,
        spare_tokens=max(0, int(min(thresholds.longest_summary, left)) - cap),
    )


def is_worthwhile(cut: Cut, minimum_tokens: float) -> bool:
    """Whether the cut frees enough even if the summary is as long as it may be."""
    longest = min(cut.cap_tokens, SMALLER_SHARE * cut.replaced_tokens)
    return cut.replaced_tokens - longest >= minimum_tokens


def limit_summary(cut: Cut, reply_tokens: int | None) -> Cut:
    """The same cut for a summary model that writes at most this much; None if that is not known."""
    if not reply_tokens or cut.longest_tokens <= reply_tokens:
        return cut
    cap_tokens = min(cut.cap_tokens, reply_tokens)
    return replace(cut, cap_tokens=cap_tokens, spare_tokens=reply_tokens - cap_tokens)


def sum_replaced(calibrated: CalibratedSizes, base: Pivot | None, start: int, covers: int) -> int:
    """True tokens of the messages `start:covers` and of the summary before them."""
    summary = base.tokens * calibrated.ratio if base is not None else 0.0
    return int(sum(calibrated.messages[start:covers]) + summary)


def _choose_covers(
    situation: Situation, thresholds: Thresholds, room: float, must_keep: int, lead: int
) -> int:
    """The position where the tail begins. room: true tokens up to the target, without the fixed parts."""
    conversation, tokens = situation.conversation, situation.calibrated.messages
    covers = _find_tail(conversation, tokens, min(thresholds.tail, room) - lead, must_keep)
    covers = _find_known(conversation, covers, must_keep)
    tail_messages = situation.policy.keep.tail_messages
    if not tail_messages:
        return covers
    wanted = max(len(tokens) - tail_messages, 0)
    while not is_boundary(conversation, wanted):
        wanted -= 1
    most = room + (thresholds.hard - thresholds.target) / 2
    if sum(tokens[wanted:]) > most - lead:
        wanted = _shrink_tail(conversation, tokens, wanted, must_keep, room - lead)
    return min(covers, _find_known(conversation, wanted, must_keep))


def _find_tail(conversation: Conversation, tokens: Sequence[float], budget: float, must_keep: int) -> int:
    """The start of the largest tail of whole groups within the budget, at `must_keep` at the latest."""
    position = at = must_keep
    kept = sum(tokens[must_keep:])
    while at > 0:
        at -= 1
        kept += tokens[at]
        if kept > budget:
            break
        if is_boundary(conversation, at):
            position = at
    return position


def _find_known(conversation: Conversation, position: int, must_keep: int) -> int:
    """The first cut from here on that a later request finds again, `must_keep` at the latest."""
    position = max(position, min(conversation.known_from, must_keep))
    while position < must_keep and not is_boundary(conversation, position):
        position += 1
    return position


def _shrink_tail(
    conversation: Conversation, tokens: Sequence[float], position: int, must_keep: int, budget: float
) -> int:
    """Moves the start of the tail forward until it fits the budget, to `must_keep` at most."""
    kept = sum(tokens[position:])
    while position < must_keep and (kept > budget or not is_boundary(conversation, position)):
        kept -= tokens[position]
        position += 1
    return position


def name_branch(conversation: Conversation, cut: Cut) -> str:
    """Under which its compactions exclude one another, whatever they cover: what they build on, or where they
    begin.
    """
    if cut.base is not None:
        return cut.base.key
    return conversation.chain[min(max(cut.start + 1, conversation.known_from), cut.covers)].hex()


def list_newer_keys(conversation: Conversation, cut: Cut) -> list[str]:
    """Where a pivot may have been made meanwhile that makes the cut needless, the last one first.

    It covers more than the cut builds on, and the conversation can use it: it ends before the open group, or
    where the cut does. However far apart two cuts are, they have the name of one branch.
    """
    first = max(cut.start + 1, conversation.known_from)
    last = max(cut.covers, find_open_group(conversation))
    return [conversation.chain[at].hex() for at in range(last, first - 1, -1)]
