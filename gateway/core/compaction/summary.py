"""Which model is asked for a summary and when not, and whether a text can replace the history.

A text that fails its checks is never stored or sent. Knows one reply of the summary model, or what a person
wrote, and the size of what it is to replace.
"""

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from gateway.core.compaction.cut import SMALLER_SHARE
from gateway.core.policy import Policy, Summary
from gateway.core.sizing.estimate import UNCALIBRATED_MARGIN

# Only at the beginning of a text, because a summary may mention such tags. If it is not closed, all is
# reasoning.
_THINKING = re.compile(
    r"\A(?:\s*<(think|thinking|thought|reasoning)>.*?(?:</\1>|\Z))+", re.DOTALL | re.IGNORECASE
)
# A closing tag alone at the end of a line: some templates put the opening one into the prompt (DeepSeek R1,
# Qwen 3).
_THINKING_TAIL = re.compile(
    r"\A(?:(?!<think).)*?</think(?:ing)?>[ \t]*$", re.DOTALL | re.IGNORECASE | re.MULTILINE
)
# A short text that begins like this is a refusal. A summary wrongly taken for one costs a retry.
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
# A heading, as a template asks for it.
_HEADING = re.compile(r"^#{1,6}[ \t]+(\S.*)$", re.MULTILINE)
# What else stands in its line: numbers, and marks of models that write headings in another way. It is taken
# off in linear time: a reply may be one line of a million marks.
_BESIDE_HEADING = string.punctuation + string.digits + string.whitespace + "\u2022\u2013\u2014\uff1a"
# A longer line is no heading, whatever it has beside one.
_MOST_BESIDE_CHARS = 40
# Upstream applies the cap by its own count. Ours may differ by this factor, and by a larger one as long as
# its tokenizer is unknown.
CAP_TOLERANCE = 1.25
_UNCALIBRATED_CAP_TOLERANCE = 1 + UNCALIBRATED_MARGIN


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """The reply of the summary model."""

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
    reason: str
    # False if the gateway or the history is the cause.
    is_summarizer_fault: bool = True


# The tenant's summaries have used what they may use in an hour. One line of the log says so for all of them.
OVER_BUDGET: Final = Rejected("over budget", is_summarizer_fault=False)


def strip_thinking(text: str) -> str:
    """The text without reasoning at its beginning, closed or not, and without surrounding space."""
    return _THINKING_TAIL.sub("", _THINKING.sub("", text)).strip()


def find_flaw(candidate: Candidate) -> Rejected | None:
    """The checks that need no counting; None if the reply passes them."""
    if candidate.has_error:
        return Rejected("error")
    if candidate.has_tool_calls:
        return Rejected("tool calls")
    if (candidate.finish_reason or "").lower() in _REFUSED:
        return Rejected("refusal")
    if candidate.finish_reason not in _FINISHED:
        return Rejected("truncated" if candidate.finish_reason else "unfinished")
    text = strip_thinking(candidate.text)
    if not text:
        return Rejected("empty")
    is_refusal = len(text) <= _LONGEST_REFUSAL_CHARS and _REFUSAL.match(text)
    return Rejected("refusal") if is_refusal else None


# Policies have few instructions, and each request that is measured asks.
@lru_cache(maxsize=64)
def find_headings(instruction: str) -> tuple[str, ...]:
    """Those that a summary is asked to have; none if its form is not given."""
    return tuple(map(_name_heading, _HEADING.findall(instruction)))


def has_headings(text: str, wanted: Sequence[str]) -> bool:
    """Whether at least half of them are lines of the text. True if none are wanted.

    Models leave out headings with nothing below; an answer to the conversation itself has none of them.
    """
    longest = max(map(len, wanted), default=0) + _MOST_BESIDE_CHARS
    lines = {_name_heading(line) for line in text.splitlines() if len(line) <= longest}
    return 2 * sum(heading in lines for heading in wanted) >= len(wanted)


def _name_heading(line: str) -> str:
    return line.strip(_BESIDE_HEADING).casefold()


@dataclass(frozen=True, kw_only=True, slots=True)
class SummaryBounds:
    """True tokens."""

    replaced_tokens: int
    cap_tokens: int
    # Whether the tokenizer of the model is known.
    is_calibrated: bool = True
    # The headings that tell a summary from any other reply; see `has_headings`.
    headings: Sequence[str] = ()


def judge_summary(candidate: Candidate, tokens: int, bounds: SummaryBounds) -> Accepted | Rejected:
    """Accepted if it is complete, within its cap, at least 10 % smaller than what it replaces, and has the
    headings.

    tokens: true tokens of the stripped text.
    """
    rejected = find_flaw(candidate)
    if rejected is not None:
        return rejected
    tolerance = CAP_TOLERANCE if bounds.is_calibrated else _UNCALIBRATED_CAP_TOLERANCE
    if tokens > bounds.cap_tokens * tolerance:
        return Rejected("over its cap")
    if tokens > bounds.replaced_tokens * SMALLER_SHARE:
        return Rejected("not smaller")
    text = strip_thinking(candidate.text)
    return Accepted(text, tokens) if has_headings(text, bounds.headings) else Rejected("no headings")


def find_edit_flaw(text: str, tokens: int, bounds: SummaryBounds) -> str | None:
    """Why a person's text may not be used; None if it may. tokens: of the text. bounds.cap_tokens: 0 if no
    window is known.
    """
    cap_tokens, begin = int(bounds.cap_tokens * CAP_TOLERANCE), f"The summary has about {tokens} tokens"
    if not text.strip():
        return "The summary is empty."
    if bounds.cap_tokens and tokens > cap_tokens:
        return f"{begin}; at most {cap_tokens} are allowed here."
    if tokens > bounds.replaced_tokens * SMALLER_SHARE:
        return (
            f"{begin} and replaces about {bounds.replaced_tokens}: it must be at least 10 % smaller than what"
            " it replaces."
        )
    return None


def choose_summary_model(summary: Summary, model: str) -> str:
    """The policy's own model, else that of the first pattern that matches, else the conversation's model."""
    if summary.model is not None:
        return summary.model
    mapped = next((name for pattern, name in summary.model_map if fnmatchcase(model, pattern)), None)
    return mapped or model


def wants_riding(policy: Policy, model: str, upstream: str) -> bool:
    """Whether the policy's summaries ride at all: only on the conversation's own model, and only where
    headings tell a summary from an answer.
    """
    summary, prompts = policy.summary, policy.prompts
    return (
        summary.method == "model"
        and summary.ride == "auto"
        and bool(prompts.ride.strip())
        and summary.upstream in (None, upstream)
        and choose_summary_model(summary, model) == model
        and bool(find_headings(prompts.instruction))
    )


# After three failures in a row the breaker opens; once the time is over, single attempts are allowed.
_MAX_FAILURES: Final = 3
_OPEN_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Breaker:
    failures: int = 0
    retry_at_seconds: float = 0.0

    def allows(self, now_seconds: float) -> bool:
        """Whether it is closed, or has been open for long enough to try again."""
        return self.failures < _MAX_FAILURES or now_seconds >= self.retry_at_seconds

    def with_failure(self, now_seconds: float) -> "Breaker":
        return Breaker(self.failures + 1, now_seconds + _OPEN_SECONDS)

    def with_attempt(self, now_seconds: float) -> "Breaker":
        """While it is open only one attempt at a time is allowed."""
        if self.failures < _MAX_FAILURES:
            return self
        return Breaker(self.failures, now_seconds + _OPEN_SECONDS)
