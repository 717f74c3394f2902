"""Decisions by numbers, row by row of `tests/tables/rules.yaml`: what is given, and what it is."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from gateway.core.compaction.cut import Cut, is_worthwhile
from gateway.core.compaction.plan import choose_output
from gateway.core.compaction.prune import PruneThresholds, choose_prune_thresholds
from gateway.core.compaction.summary import (
    Accepted,
    Breaker,
    Candidate,
    SummaryBounds,
    choose_summary_model,
    find_flaw,
    judge_summary,
)
from gateway.core.economy import AnsweredTurn, Rates, note_response
from gateway.core.history.conversation import begin_conversation, find_open_group, with_messages
from gateway.core.history.head import smooth_growth
from gateway.core.history.message import Message, Role
from gateway.core.history.pivot import Mark
from gateway.core.history.purpose import find_purpose
from gateway.core.history.transcript import cut_middle, neutralize
from gateway.core.history.view import Size, shown_tokens
from gateway.core.limits.model_limits import Learned, Limits, has_long_window, is_plausible, make_names
from gateway.core.limits.thresholds import RequestSize, find_small_window
from gateway.core.policy import Policy, Pruning, Summary
from gateway.core.search.cutting import cut_text
from gateway.core.sizing.estimate import Calibration, Estimate, Expected, is_plausible_ratio, is_truncated
from gateway.core.sizing.usage import Usage
from gateway.planning.message_sizes import Tokenizer, count_by_length, count_by_length_up
from tests.decisions.builders import converse, make_head, prune_loop, talk
from tests.decisions.test_tables import load_table

_DAY = 86_400.0
_TOKENIZER = Tokenizer()
_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool", "other")
_FAMILIES = Summary(model_map=(("*-haiku", None), ("claude-*", "claude-haiku"), ("c*", "other")))
_CANDIDATE: dict[str, Any] = {
    "text": "We fixed it.",
    "finish_reason": "stop",
    "has_tool_calls": False,
    "has_error": False,
}


def reply(
    requested: int | None, context: int | None, tokens: int, unsure: int = 0, minimum: int = 0
) -> int | None:
    """The reply that is asked for instead; none: it stays."""
    return choose_output(requested, context, Estimate(tokens, unsure), minimum)


def cut_is_worthwhile(replaced: int, cap: int, minimum: float) -> bool:
    cut = Cut(base=None, start=0, covers=1, replaced_tokens=replaced, cap_tokens=cap)
    return is_worthwhile(cut, minimum)


def summary(tokens: int, replaced: int, cap: int, *, is_calibrated: bool = True) -> str:
    """Whether a good summary of so many tokens is accepted for so many, or why not."""
    bounds = SummaryBounds(replaced_tokens=replaced, cap_tokens=cap, is_calibrated=is_calibrated)
    judged = judge_summary(Candidate(**_CANDIDATE), tokens, bounds)
    return "accepted" if isinstance(judged, Accepted) else judged.reason


def flaw(**fields: Any) -> str | None:
    found = find_flaw(Candidate(**(_CANDIDATE | fields)))
    return found.reason if found is not None else None


def long_window(model: str, beta: Sequence[str]) -> bool:
    return has_long_window(model, [(b"Anthropic-Beta", value.encode()) for value in beta])


def truncated(prompt: int, before: int, added: int, whole: int | None) -> bool:
    """Whether a prompt of so many tokens was cut: after one of `before`, `added` were added to `whole`."""
    return is_truncated(prompt, Expected(before=before, added=added, whole=whole))


def history_ends(roles: str) -> list[int]:
    """Of the leading block, the opening, and what is before the open group; roles by their first letters."""
    found = [next(role for role in _ROLES if role[0] == letter) for letter in roles]
    messages = [
        Message(role, name, name, 9, results=("a",) if role == "tool" else ())
        for role in found
        if (name := role.encode())
    ]
    conversation = with_messages(begin_conversation("t", "chat"), 0, messages)
    return [len(conversation.leading), conversation.opening_end, find_open_group(conversation)]


def purpose(leading: str, newest: str, *, is_agent: bool = False) -> str:
    return find_purpose(leading.encode(), newest.encode(), is_agent=is_agent)


def shown(
    size: Sequence[int], kept: int = 0, *, is_marked: bool = False, keep_chars: int | None = None
) -> int:
    """The tokens of a message that is cleared, or cut to so many characters. size: tokens and characters."""
    tokens, chars = size
    return shown_tokens(Size(tokens, chars, kept=kept), Mark(0, keep_chars) if is_marked else None)


def small_window(window: int, floor: int, turn: float) -> list[int | None] | None:
    """The turns that fit, and the window that would hold six; none: six fit."""
    size = RequestSize(turn=turn, floor=floor)
    found = find_small_window(Policy(), Limits(context=window), size, floor)
    return [found.turns, found.sufficient] if found is not None else None


def prune_thresholds(hard: int) -> list[int]:
    found = choose_prune_thresholds(Pruning(), hard)
    return [found.protect, found.minimum]


def pruned(tokens: int = 100, protect: int = 300, minimum: int = 100, **fields: Any) -> list[int]:
    """Of results at 2, 4 … 20 after calls of 5 tokens. 10 and 20 are a skill's, and 20 is open."""
    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return list(prune_loop(tokens, Pruning(**given), PruneThresholds(protect=protect, minimum=minimum)))


def breaker_allows(events: Sequence[tuple[str, float]], at: float) -> bool:
    breaker = Breaker()
    for what, second in events:
        breaker = breaker.with_failure(second) if what == "failure" else breaker.with_attempt(second)
    return breaker.allows(at)


def learned(steps: Sequence[Any], at: float, why: str = "") -> dict[str, Any]:
    """What is held for proven and suspected on a day, after proofs, refusals and successes on other days."""
    known = Learned(owner="t")
    for what, said, *day in steps:
        match what:
            case "proof":
                known = known.with_proof(Limits(**said), day[0] * _DAY)
            case "refusal":
                known = known.with_refusal(said, day[0] * _DAY)
            case "success":
                known = known.with_success(said)
    proven = {name: value for name, value in asdict(known.proven_at(at * _DAY)).items() if value is not None}
    return {"proven": proven, "suspected": known.suspected_at(at * _DAY).context}


def calibration(samples: Sequence[tuple[int, int]]) -> list[float]:
    """The ratio and how many samples it has, after these counts of the upstream and of ours."""
    known = Calibration()
    for true, raw in samples:
        known = known.with_sample(true, raw)
    return [known.ratio, known.samples]


def growth(growth: float, total: int) -> float:
    """After a head of 1,100 tokens."""
    head = make_head(converse(talk(1)), prompt_tokens=1_000, output_tokens=100, growth_tokens=growth)
    return smooth_growth(head, total)


def cache(usage: dict[str, int]) -> list[bool]:
    """Whether a response tells of a cache, or of none."""
    told = AnsweredTurn(
        usage=Usage(**usage), pivot=None, pivot_tokens=0, fixed_tokens=5_000.0, tail_tokens=10_000
    )
    ledger = note_response(None, told, Rates(1.25, 0.1, 5.0), 7.0)
    return [ledger.has_cached, ledger.is_uncached]


def tokens(text: str) -> list[int]:
    return [count(text) for count in (_TOKENIZER.count, count_by_length, count_by_length_up)]


_SECTIONS: dict[str, Callable[..., Any]] = {
    "reply": reply,
    "cut_is_worthwhile": cut_is_worthwhile,
    "summary": summary,
    "flaw": flaw,
    "summary_model": lambda model: choose_summary_model(_FAMILIES, model),
    "long_window": long_window,
    "plausible_window": lambda tokens: is_plausible(tokens),
    "model_names": lambda model: list(make_names(model)),
    "truncated": truncated,
    "history_ends": history_ends,
    "purpose": purpose,
    "shown_tokens": shown,
    "cut_middle": lambda text, keep: cut_middle(text, keep),
    "is_escaped": lambda text: neutralize(text) != text,
    "small_window": small_window,
    "prune_thresholds": prune_thresholds,
    "pruned": pruned,
    "breaker_allows": breaker_allows,
    "learned": learned,
    "calibration": calibration,
    "wants_sample": lambda samples, prompt: Calibration(1.0, samples).wants_sample(prompt),
    "plausible_ratio": lambda ratio: is_plausible_ratio(ratio),
    "growth": growth,
    "cache": cache,
    "tokens": tokens,
    "first_piece": lambda text: text[slice(*next(cut_text(text, 24)))],
}


@pytest.mark.system(6, 16, 17, 19)
@pytest.mark.parametrize("section", _SECTIONS)
def test_what_is_given_is_decided_as_its_row_says(section: str) -> None:
    decide = _SECTIONS[section]
    wrong = []
    for row in load_table("rules")[section]:
        given = {name: value for name, value in row.items() if name != "is"}
        if (found := decide(**given)) != row["is"]:
            wrong.append((given, row["is"], found))
    assert wrong == []


def test_every_section_of_the_rules_is_read() -> None:
    assert load_table("rules").keys() == _SECTIONS.keys()
