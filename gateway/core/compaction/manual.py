"""Compactions that a person asks for: the command, what such a compaction replaces, and its outcome.

Thresholds do not decide when it happens, only how much stays. Knows the texts, but no wire formats; the
policy decides who may give the command.
"""

from dataclasses import dataclass, replace
from typing import Final, assert_never

from gateway.core.compaction.cut import WORTHWHILE_SHARE, Cut, choose_cut, is_worthwhile
from gateway.core.compaction.situation import Situation
from gateway.core.history.conversation import find_open_group
from gateway.core.history.message import Message
from gateway.core.history.pivot import Pivot
from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import RequestSize, Thresholds, choose_thresholds

_COMMAND: Final = "/compact"
# A longer text is a message that happens to begin like the command.
LONGEST_INSTRUCTIONS_CHARS: Final = 8_000
# Stands for an unknown window, unless the conversation is larger.
_STAND_IN_WINDOW_TOKENS: Final = 128_000
# The summary's cap as a share of what it replaces, so that the model knows to make it shorter than that.
_CAP_SHARE: Final = 0.5
# A shorter summary says nothing.
_SMALLEST_CAP_TOKENS: Final = 256
# Fewer messages are not worth a summary, and an earlier summary alone is not rewritten: it would only lose
# facts.
_MIN_REPLACED_TOKENS: Final = 256


@dataclass(frozen=True, slots=True)
class Compacted:
    """Done. A record; tokens are estimates of what is sent upstream."""

    # The number of messages that the summary replaces.
    messages: int
    before_tokens: int
    after_tokens: int


@dataclass(frozen=True, slots=True)
class NothingToCompact: ...


@dataclass(frozen=True, slots=True)
class InProgress:
    """This compaction or another one is not finished yet."""


@dataclass(frozen=True, slots=True)
class Failed:
    # One of a few fixed texts of ours, never the words of a model or an upstream.
    reason: str


ManualOutcome = Compacted | NothingToCompact | InProgress | Failed


def may_be_command(message: Message) -> bool:
    """Whether the text has to be read: it is a user's message of text alone."""
    return message.role == "user" and not message.results and not message.has_media


def parse_compact(text: str) -> str | None:
    """The instructions of `/compact [instructions]`, maybe empty; None for any other text."""
    name, *rest = text.split(maxsplit=1) or ("",)
    instructions = rest[0].rstrip() if rest else ""
    is_command = name == _COMMAND and len(instructions) <= LONGEST_INSTRUCTIONS_CHARS
    return instructions if is_command else None


def describe_outcome(outcome: ManualOutcome) -> str:
    """The reply to the command, which the model reads when the client sends it back."""
    match outcome:
        case Compacted(messages, before, after):
            return (
                f"Compacted: {messages} earlier messages are now a summary. "
                f"About {before:,} tokens before, {after:,} after."
            )
        case NothingToCompact():
            return "Nothing to compact: there is no earlier turn to summarize. The conversation is unchanged."
        case InProgress():
            return "A compaction of this conversation is under way. It takes effect when it is done."
        case Failed(reason):
            return f"The compaction failed ({reason}). The conversation is unchanged."
        case _:
            assert_never(outcome)


def choose_manual_cut(situation: Situation) -> Cut | None:
    """The cut that keeps the policy's tail, or only the open group if that is not worth a call.

    It builds on the active pivot. None if there is nothing to replace.
    """
    thresholds = _choose_thresholds(situation)
    open_group = find_open_group(situation.conversation)
    cut = _choose_cut(situation, thresholds, situation.sticky, open_group)
    if cut is not None and is_worthwhile(cut, WORTHWHILE_SHARE * thresholds.hard):
        return cut
    return choose_remaining_cut(situation, situation.sticky, open_group)


def choose_remaining_cut(situation: Situation, base: Pivot | None, covers: int) -> Cut | None:
    """The cut for what is left to replace up to `covers`, after `base` was made."""
    thresholds = replace(_choose_thresholds(situation), tail=0)
    return _choose_cut(situation, thresholds, base, covers)


def measure_compaction(situation: Situation, whole: Cut, pivot: Pivot) -> Compacted:
    """The outcome for this cut, which ended in this pivot, after one call or several."""
    before_tokens, after_tokens = situation.count_with(whole.base), situation.count_after(whole.base, pivot)
    return Compacted(pivot.covers - whole.start, before_tokens, after_tokens)


def _choose_cut(
    situation: Situation, thresholds: Thresholds, base: Pivot | None, must_keep: int
) -> Cut | None:
    cut = choose_cut(situation, thresholds, base, must_keep)
    if cut is None or sum(situation.calibrated.messages[cut.start : cut.covers]) < _MIN_REPLACED_TOKENS:
        return None
    longest_tokens = max(_SMALLEST_CAP_TOKENS, int(_CAP_SHARE * cut.replaced_tokens))
    return replace(cut, cap_tokens=min(cut.cap_tokens, longest_tokens), spare_tokens=0)


def _choose_thresholds(situation: Situation) -> Thresholds:
    calibrated = situation.calibrated
    size = RequestSize(growth=situation.growth, floor=int(calibrated.environment))
    thresholds = choose_thresholds(situation.policy, situation.limits, size)
    whole_tokens = int(2 * (calibrated.environment + sum(calibrated.messages)))
    stand_in = Limits(context=max(_STAND_IN_WINDOW_TOKENS, whole_tokens))
    thresholds = thresholds or choose_thresholds(situation.policy, stand_in, size)
    assert thresholds is not None  # The stand-in has a window.
    return thresholds
