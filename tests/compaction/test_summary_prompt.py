"""What a summary call says."""

from dataclasses import replace

from gateway.compaction.summary_prompt import make_parts
from gateway.core.compaction.chunks import Quoting
from gateway.core.compaction.cut import Cut
from gateway.core.history.transcript import TranscriptEntry
from gateway.core.policy import Policy, Prompts, Summary
from tests.builders.chat import converse, make_pivot

_POLICY = Policy(prompts=Prompts(question="What?", instruction="Say it."))
_SPOKEN = [
    TranscriptEntry("user", "u" * 5_000, (), 0),
    TranscriptEntry("assistant", "", (("write", "a" * 5_000),), 0),
    TranscriptEntry("tool", "t" * 5_000, (), 0, is_result=True),
]
_CUT = Cut(base=None, start=0, covers=3, replaced_tokens=100, cap_tokens=100, opening_chars=None)


def longest_run(text: str, letter: str) -> int:
    return max(map(len, "".join(c if c == letter else " " for c in text).split()), default=0)


def test_the_question_comes_first_and_the_instruction_last() -> None:
    parts = make_parts(_POLICY, _CUT, _SPOKEN, Quoting())
    assert (len(parts), parts[0], parts[2]) == (3, "What?", "Say it.\n\nWrite at most 60 words.")
    assert longest_run(parts[1], "t") == 5_000


def test_an_earlier_summary_stands_before_what_follows_it() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    base = make_pivot(converse(messages), 2, summary="Earlier.")
    parts = make_parts(_POLICY, replace(_CUT, base=base), _SPOKEN, Quoting())
    assert "Earlier." in parts[1] and "<conversation>" in parts[2]


def test_context_lines_stand_before_the_instruction_and_instructions_behind_it() -> None:
    summary = Summary(extra_context=("Branch: main", "Goal: port it"), instructions="Keep ticket numbers.")
    parts = make_parts(replace(_POLICY, summary=summary), _CUT, _SPOKEN, Quoting())
    assert parts[2:] == (
        "Branch: main\nGoal: port it",
        "Say it.\n\nKeep ticket numbers.\n\nWrite at most 60 words.",
    )


def test_every_message_is_cut_for_the_summariser_where_the_policy_says_so() -> None:
    cutting = replace(_POLICY, summary=Summary(message_chars=2_000))
    whole = make_parts(cutting, _CUT, _SPOKEN, Quoting())[1]
    assert [longest_run(whole, letter) for letter in "uat"] == [1_000, 1_000, 1_000]
    # What does not fit all the same is cut further.
    tighter = make_parts(cutting, _CUT, _SPOKEN, Quoting(tool_chars=500))[1]
    assert [longest_run(tighter, letter) for letter in "uat"] == [1_000, 250, 250]
