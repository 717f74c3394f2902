"""Is this text fit to stand for the history? What fails here is never stored and never sent.

Knows one answer of the summariser and what it was asked to replace.
"""

import re
from dataclasses import dataclass

from gateway.core.compaction.cut import SMALLER_SHARE
from gateway.core.sizing.estimate import UNCALIBRATED_MARGIN

# Only where a text begins with it: a summary may well speak of such tags. Not closed, it is all thinking.
_THINKING = re.compile(
    r"\A(?:\s*<(think|thinking|thought|reasoning)>.*?(?:</\1>|\Z))+", re.DOTALL | re.IGNORECASE
)
# A closing tag alone, at the end of a line: templates put the opening one into the prompt (DeepSeek R1,
# Qwen 3).
_THINKING_TAIL = re.compile(
    r"\A(?:(?!<think).)*?</think(?:ing)?>[ \t]*$", re.DOTALL | re.IGNORECASE | re.MULTILINE
)
# A refusal in words: it begins like one and says little more. Wrongly taken for one, a summary costs a retry.
_REFUSAL = re.compile(
    r"(?:(?:i['’]?m|i am) (?:very |so )?sorry\b|sorry[,.]|i apologi[sz]e\b"
    r"|(?:i['’]m|i am) (?:unable|not able) to\b"
    r"|i (?:can['’]?t|cannot|can not|won['’]t|will not)"
    r" (?:help|assist|comply|provide|continue|do|summari[sz]e|fulfil|share|discuss)\b)",
    re.IGNORECASE,
)
_LONGEST_REFUSAL_CHARS = 600
_REFUSED = frozenset({"content_filter", "refusal", "safety"})
_FINISHED = frozenset({"stop", "end_turn", "eos", "completed"})
# Upstream enforces the cap by its own count; ours may differ by this much before we call it broken, and by
# more as long as its tokenizer is unknown.
_CAP_TOLERANCE = 1.25
_UNCALIBRATED_TOLERANCE = 1 + UNCALIBRATED_MARGIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """What the summariser said."""

    text: str
    finish_reason: str | None
    has_tool_calls: bool
    has_error: bool


@dataclass(frozen=True, slots=True)
class Accepted:
    summary: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """is_summarisers: the fault lies with who was asked, not with us or with the history."""

    reason: str
    is_summarizer_fault: bool = True


def strip_thinking(text: str) -> str:
    """The text without the reasoning that it begins with, closed or not, and without space around it."""
    return _THINKING_TAIL.sub("", _THINKING.sub("", text)).strip()


def is_complete(answer: Candidate) -> Rejected | None:
    """The checks that need no counting, or None where the answer passes them."""
    if answer.has_error:
        return Rejected("error")
    if answer.has_tool_calls:
        return Rejected("tool calls")
    if (answer.finish_reason or "").lower() in _REFUSED:
        return Rejected("refusal")
    if answer.finish_reason not in _FINISHED:
        return Rejected("truncated" if answer.finish_reason else "unfinished")
    text = strip_thinking(answer.text)
    if not text:
        return Rejected("empty")
    return Rejected("refusal") if _is_refusal(text) else None


def _is_refusal(text: str) -> bool:
    return len(text) <= _LONGEST_REFUSAL_CHARS and _REFUSAL.match(text) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryBounds:
    """folded: what is replaced; cap: what was asked for; true tokens. is_calibrated: as well as we know."""

    replaced_tokens: int
    cap_tokens: int
    is_calibrated: bool = True


def judge_summary(answer: Candidate, tokens: int, bounds: SummaryBounds) -> Accepted | Rejected:
    """`tokens`: true tokens of the stripped text. Smaller than what it replaces by 10 %, and within its
    cap.
    """
    rejected = is_complete(answer)
    if rejected is not None:
        return rejected
    tolerance = _CAP_TOLERANCE if bounds.is_calibrated else _UNCALIBRATED_TOLERANCE
    if tokens > bounds.cap_tokens * tolerance:
        return Rejected("over its cap")
    if tokens > bounds.replaced_tokens * SMALLER_SHARE:
        return Rejected("not smaller")
    return Accepted(strip_thinking(answer.text), tokens)
