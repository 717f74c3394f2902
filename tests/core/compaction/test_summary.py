from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.summary import (
    Accepted,
    Candidate,
    Rejected,
    SummaryBounds,
    find_flaw,
    find_headings,
    has_headings,
    judge_summary,
    strip_thinking,
)

_GOOD = Candidate(text=" We fixed it.\n", finish_reason="stop", has_tool_calls=False, has_error=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" a \n", "a"),
        ("<think>hm</think>\na", "a"),
        ("<THINKING>hm</THINKING>a", "a"),
        ("<thought>x</thought><reasoning>y</reasoning>b", "b"),
        ("It drops all before `</think>` and keeps `<think>` alone.",) * 2,
        ("Plan:\n- strip <think>x</think> blocks",) * 2,
        ("<think>never closed", ""),
        ("opened by the template</think>\na", "a"),
        ("<think>a</thinking>b</think>c", "c"),
        ("I think <b>so</b>", "I think <b>so</b>"),
        ("", ""),
    ],
)
def test_thinking_is_not_a_summary(text: str, expected: str) -> None:
    assert strip_thinking(text) == expected


@pytest.mark.parametrize("reason", ["stop", "end_turn", "eos", "completed"])
def test_a_smaller_summary_is_accepted_without_its_thinking(reason: str) -> None:
    answer = replace(_GOOD, finish_reason=reason, text="<think>x</think> We fixed it.\n")
    assert judge_summary(answer, 100, SummaryBounds(replaced_tokens=1_000, cap_tokens=400)) == Accepted(
        "We fixed it.", 100
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (replace(_GOOD, has_error=True, has_tool_calls=True), "error"),
        (replace(_GOOD, has_tool_calls=True), "tool calls"),
        (replace(_GOOD, finish_reason="length"), "truncated"),
        (replace(_GOOD, finish_reason="content_filter"), "refusal"),
        (replace(_GOOD, text="I’m sorry, but I can’t help with that."), "refusal"),
        (replace(_GOOD, text="I cannot summarise this conversation."), "refusal"),
        (replace(_GOOD, finish_reason=None), "unfinished"),
        (replace(_GOOD, text=" \n"), "empty"),
        (replace(_GOOD, text="<think>only this</think>"), "empty"),
    ],
)
def test_a_flawed_summary_is_rejected(answer: Candidate, reason: str) -> None:
    assert find_flaw(answer) == Rejected(reason)
    assert judge_summary(answer, 1, SummaryBounds(replaced_tokens=10**6, cap_tokens=10**6)) == Rejected(
        reason
    )


def test_a_complete_summary_has_no_flaw() -> None:
    assert find_flaw(_GOOD) is None


@pytest.mark.parametrize(
    ("tokens", "folded", "cap", "reason"),
    [
        (900, 1_000, 4_096, None),
        (901, 1_000, 4_096, "not smaller"),
        (500, 1_000, 400, None),
        (501, 1_000, 400, "over its cap"),
        (0, 0, 0, None),
    ],
)
def test_it_must_be_smaller_by_a_tenth_and_within_its_cap(
    tokens: int, folded: int, cap: int, reason: str | None
) -> None:
    expected = Rejected(reason) if reason else Accepted("We fixed it.", tokens)
    assert judge_summary(_GOOD, tokens, SummaryBounds(replaced_tokens=folded, cap_tokens=cap)) == expected


@given(st.text(st.characters(codec="utf-8")))
def test_stripping_a_text_without_thinking_is_idempotent(text: str) -> None:
    assert strip_thinking(strip_thinking(text)) == strip_thinking(text)


@pytest.mark.parametrize(
    "text",
    [
        "I can't find a second call site; everything else is done.",
        "I'm sorry, " + "but first what was done: the cache was moved. " * 20,
        "We said: I'm sorry, I can't help with that.",
        "Sorry about the naming: the module is `sorry.py`.",
    ],
)
def test_a_summary_that_mentions_a_refusal_is_not_one(text: str) -> None:
    assert find_flaw(replace(_GOOD, text=text)) is None


def test_the_cap_has_more_tolerance_as_long_as_the_tokenizer_is_unknown() -> None:
    bounds = SummaryBounds(replaced_tokens=10_000, cap_tokens=1_000)
    assert isinstance(judge_summary(_GOOD, 1_500, bounds), Rejected)
    assert isinstance(judge_summary(_GOOD, 1_500, replace(bounds, is_calibrated=False)), Accepted)
    assert isinstance(judge_summary(_GOOD, 1_800, replace(bounds, is_calibrated=False)), Rejected)


# Headings

_TEMPLATE = "Write it.\n\n## Goal\nWhat?\n\n## Next step\nThen?\n\n### Files \n#no heading\n- ## nor this"


def test_headings_of_a_template_are_its_lines_with_marks() -> None:
    assert find_headings(_TEMPLATE) == ("goal", "next step", "files")
    assert find_headings("Summarize it all.") == ()


@pytest.mark.parametrize(
    "text",
    [
        "## Goal\nPort it.\n\n## Next step\nTest it.",
        "Here it is:\n\n# GOAL\nPort it.\n## Files:\n- a.py",
        "**Goal**\nPort it.\n\n1. **Next step:**\nTest it.",
        "### 1. Goal\nPort it.\n### 2. Files\nNone",
    ],
)
def test_half_of_the_headings_make_a_summary(text: str) -> None:
    assert has_headings(text, find_headings(_TEMPLATE))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I ported it, and the tests pass.",
        "## Goal\nPort it.",
        "The goal is to port it. The next step is a test.",
        "## Fix\nIn files: a.py.\n## Test\nNext step: run it.",
    ],
)
def test_an_answer_has_other_headings_or_none(text: str) -> None:
    assert not has_headings(text, find_headings(_TEMPLATE))


def test_without_wanted_headings_any_text_has_them() -> None:
    assert has_headings("We fixed it.", ())


def test_a_reply_without_the_wanted_headings_is_no_summary() -> None:
    bounds = SummaryBounds(replaced_tokens=1_000, cap_tokens=400, headings=("goal", "next step"))
    assert judge_summary(_GOOD, 100, bounds) == Rejected("no headings")
    thought = replace(_GOOD, text="<think>## Goal\n## Next step</think>We fixed it.")
    assert judge_summary(thought, 100, bounds) == Rejected("no headings")
    told = replace(_GOOD, text="## Goal\nFix it.")
    assert judge_summary(told, 100, bounds) == Accepted(told.text, 100)


@pytest.mark.parametrize("rule", ["-", " ", "# ", "\n", "-a", "| "])
def test_a_long_rule_takes_no_time(rule: str) -> None:
    """A reply may have a million characters, and is read on the event loop."""
    assert not has_headings("a" + rule * (1_000_000 // len(rule)) + "a", ("goal", "next step"))
