import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.prune import PruneThresholds, choose_prune_thresholds, choose_results
from gateway.core.history.conversation import Conversation, find_open_group, find_tool_names
from gateway.core.history.pivot import Mark
from gateway.core.history.shared_list import SharedList
from gateway.core.history.view import FRAME_TOKENS, Size, View, make_view
from gateway.core.policy import Pruning
from gateway.core.sizing.calibrated_sizes import CalibratedSizes
from gateway.core.sizing.estimate import Sizes
from tests.builders.chat import JSON, bodies, converse, make_batch, make_pivot, read
from tests.shared_data import SHARED, requires_shared
from tests.sources.recorded_pruning import RecordedPruning

_SOURCE = Pruning(protect_ratio=1.0, minimum_ratio=1.0, keep_turns=2)
_FORTY_AND_TWENTY = PruneThresholds(protect=40_000, minimum=20_000)
_NOTHING = View(None, {})


def make_sizes(tokens: Sequence[float], ratio: float = 1.0) -> CalibratedSizes:
    """Messages with these true tokens, and four characters for each raw token of their words."""
    raw = [Size(int(each / ratio), 4 * max(0, int(each / ratio) - FRAME_TOKENS)) for each in tokens]
    return CalibratedSizes(Sizes(messages=raw, environment=0), tokens, 0.0, ratio)


class Recorded(RecordedPruning):
    def choose(self) -> list[list[int]]:
        conversation = converse(self.messages)
        pivot = make_pivot(conversation, self.start) if self.start else None
        view = make_view(pivot, [make_batch(conversation, self.marks)])
        chosen = choose_results(conversation, make_sizes(self.tokens), view, _SOURCE, _FORTY_AND_TWENTY)
        return [self.places[position] for position in chosen]


@pytest.mark.system(6)
@requires_shared
def test_the_source_rule_clears_the_same_results_as_recorded() -> None:
    cases = json.loads((SHARED / "data" / "vectors.json").read_text("utf-8"))["prune"]["cases"]
    enabled = [case for case in cases if case.get("enabled", True)]
    assert enabled
    for case in enabled:
        assert Recorded(case).choose() == case["cleared"], case["name"]


def make_loop(count: int) -> list[JSON]:
    """An agent at work: one user message, then calls and results."""
    messages: list[JSON] = [{"role": "user", "content": "Fix it."}]
    for at in range(count):
        call = {"id": f"c{at}", "function": {"name": "skill" if at % 5 == 4 else "look"}}
        messages += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{at}", "content": "x"},
        ]
    return messages


def choose(
    tokens: int,
    count: int = 10,
    view: View = _NOTHING,
    pruning: Pruning | None = None,
    thresholds: PruneThresholds | None = None,
) -> Sequence[int]:
    conversation = converse(make_loop(count))
    sizes = [float(tokens if message.results else 5) for message in conversation.messages]
    return choose_results(
        conversation,
        make_sizes(sizes),
        view,
        pruning or Pruning(),
        thresholds or PruneThresholds(protect=300, minimum=100),
    )


def test_the_newest_results_are_protected_and_so_are_the_open_group_and_skills() -> None:
    # Results are at 2, 4 … 20. 20 is open (and a skill, like 10); 18, 16 and 14 make 300; the others are
    # chosen.
    assert choose(100) == (2, 4, 6, 8, 12)


def test_a_batch_that_saves_too_little_is_not_made() -> None:
    assert choose(100, thresholds=PruneThresholds(protect=300, minimum=500)) == ()
    assert choose(100, thresholds=PruneThresholds(protect=300, minimum=499)) == (2, 4, 6, 8, 12)


def test_results_not_longer_than_the_placeholder_stay() -> None:
    assert choose(16, thresholds=PruneThresholds(protect=0, minimum=0)) == ()
    assert choose(17, thresholds=PruneThresholds(protect=0, minimum=0)) == (2, 4, 6, 8, 12, 14, 16, 18)


def test_pruning_stops_at_a_mark_and_at_a_pivot() -> None:
    conversation = converse(make_loop(10))
    marked = make_view(None, [make_batch(conversation, [Mark(6)])])
    assert choose(100, view=marked) == (8, 12)
    assert choose(100, view=View(make_pivot(conversation, 7), {})) == (8, 12)


def test_the_newest_turns_are_kept_if_the_policy_says_so() -> None:
    assert choose(100, pruning=replace(Pruning(), keep_turns=1)) == ()


@pytest.mark.parametrize(
    ("hard", "protect", "minimum"), [(1_000_000, 40_000, 20_000), (12_000, 3_600, 1_200), (1, 0, 0)]
)
def test_the_thresholds_shrink_with_the_window(hard: int, protect: int, minimum: int) -> None:
    assert choose_prune_thresholds(Pruning(), hard) == PruneThresholds(protect=protect, minimum=minimum)


# Results are at 2, 4 … 20, after their calls; the last result is open. A result has 100 tokens, a call 5.


@pytest.mark.system(19)
def test_all_messages_may_count_for_the_protected_part() -> None:
    # 20 (a skill, open), 19 … 17: 100 + 5 + 100 + 5 = 210; with 16 it is 310, above 300.
    everything = replace(Pruning(), protects="everything")
    assert choose(100, pruning=everything) == (2, 4, 6, 8, 12, 14, 16)
    # With overshoot the message that exceeds it is protected.
    assert choose(100, pruning=replace(everything, overshoot=True)) == (2, 4, 6, 8, 12, 14)


@pytest.mark.system(19)
def test_with_overshoot_a_full_protected_part_protects_nothing_more() -> None:
    overshooting = replace(Pruning(), overshoot=True)
    assert choose(100, pruning=overshooting) == (2, 4, 6, 8, 12)
    assert choose(100, pruning=overshooting, thresholds=PruneThresholds(protect=301, minimum=0)) == (
        2,
        4,
        6,
        8,
    )


@pytest.mark.system(19)
def test_a_message_counts_for_no_more_than_its_cap() -> None:
    capped = replace(Pruning(), part_tokens=50)
    # 18, 16, 14, 12, 8, 6 make 300.
    assert choose(100, pruning=capped) == ()
    assert choose(100, pruning=capped, thresholds=PruneThresholds(protect=300, minimum=99)) == (2, 4)


@pytest.mark.system(19)
def test_tools_are_protected_by_a_prefix_of_their_names() -> None:
    assert choose(100, pruning=replace(Pruning(), protected_prefixes=("lo",))) == ()
    assert choose(100, pruning=replace(Pruning(), protected_prefixes=("ook",))) == (2, 4, 6, 8, 12)


@pytest.mark.system(17)
def test_the_newest_messages_are_kept_if_the_policy_says_so() -> None:
    # Of 21 messages the last 12 stay, from position 9.
    kept = replace(Pruning(), keep_messages=12)
    assert choose(100, pruning=kept, thresholds=PruneThresholds(protect=0, minimum=100)) == (2, 4, 6, 8)


@pytest.mark.system(17)
def test_only_long_results_are_cut_and_only_the_saved_part_counts() -> None:
    # 100 tokens have 384 characters of words.
    cutting = replace(Pruning(), keep_chars=96, over_chars=383)
    assert choose(100, pruning=cutting, thresholds=PruneThresholds(protect=300, minimum=374)) == (
        2,
        4,
        6,
        8,
        12,
    )
    assert choose(100, pruning=cutting, thresholds=PruneThresholds(protect=300, minimum=375)) == ()
    longer = replace(cutting, over_chars=384)
    assert choose(100, pruning=longer, thresholds=PruneThresholds(protect=0, minimum=0)) == ()


def test_uncalibrated_pruning_counts_words_alone() -> None:
    conversation = converse(make_loop(10))
    # By our own count each result has 54 tokens, 50 of them words; upstream counts twice as many.
    sizes = make_sizes([108.0 if message.results else 10.0 for message in conversation.messages], ratio=2.0)
    for is_calibrated, protect in ((True, 324), (False, 150)):
        pruning = replace(Pruning(), calibrated=is_calibrated)
        for fewer, chosen in ((0, (2, 4, 6, 8, 12)), (1, (2, 4, 6, 8, 12, 14))):
            thresholds = PruneThresholds(protect=protect - fewer, minimum=0)
            assert choose_results(conversation, sizes, _NOTHING, pruning, thresholds) == chosen


def draw_case(data: st.DataObject) -> tuple[Conversation, list[float], PruneThresholds]:
    conversation = read(data.draw(bodies(min_turns=2, max_turns=8))).conversation
    count = len(conversation.messages)
    tokens = data.draw(st.lists(st.integers(0, 500).map(float), min_size=count, max_size=count))
    limits = st.integers(0, 600)
    return conversation, tokens, PruneThresholds(protect=data.draw(limits), minimum=data.draw(limits))


@given(st.data(), st.integers(0, 2))
def test_only_finished_unprotected_results_are_chosen_and_only_a_worthwhile_batch(
    data: st.DataObject, keep_turns: int
) -> None:
    conversation, tokens, thresholds = draw_case(data)
    pruning = Pruning(keep_turns=keep_turns)
    chosen = choose_results(conversation, make_sizes(tokens), _NOTHING, pruning, thresholds)
    names = find_tool_names(conversation)
    assert list(chosen) == sorted(set(chosen))
    assert all(position < find_open_group(conversation) for position in chosen)
    assert all(
        conversation.messages[position].results and "skill" not in names[position] for position in chosen
    )
    assert not chosen or sum(tokens[position] for position in chosen) > thresholds.minimum


@pytest.mark.system(6)
@given(st.data())
def test_pruning_twice_chooses_nothing_more(data: st.DataObject) -> None:
    conversation, tokens, thresholds = draw_case(data)
    chosen = choose_results(conversation, make_sizes(tokens), _NOTHING, Pruning(), thresholds)
    if not chosen:
        return
    after = make_view(None, [make_batch(conversation, [Mark(position) for position in chosen])])
    assert choose_results(conversation, make_sizes(tokens), after, Pruning(), thresholds) == ()


def test_a_message_counts_only_with_its_removable_part() -> None:
    conversation = converse(make_loop(6))
    count = len(conversation.messages)
    thresholds = PruneThresholds(protect=0, minimum=500)
    chosen = []
    for kept in (0, 300, 380, 400):
        sizes = Sizes(messages=[Size(400, 1_600, kept=kept)] * count, environment=0)
        calibrated = CalibratedSizes(sizes, [400.0] * count, 0.0, 1.0)
        pruning = Pruning(protect_ratio=1.0, minimum_ratio=1.0, keep_turns=0)
        chosen.append(len(choose_results(conversation, calibrated, _NOTHING, pruning, thresholds)))
    # Five results apart from the open group: 2,000 tokens, 500, 100 and none.
    assert chosen[0] > 0 and chosen[2:] == [0, 0]


def test_a_message_of_the_model_is_not_pruned_even_if_it_carries_a_result() -> None:
    talk: list[JSON] = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "look"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "Thanks."},
    ]
    conversation = converse(talk)
    carrying = [
        message._replace(results=("s",)) if position == 3 else message
        for position, message in enumerate(conversation.messages)
    ]
    calibrated = CalibratedSizes(Sizes(messages=[Size(400, 1_600)] * 5, environment=0), [400.0] * 5, 0.0, 1.0)
    pruning = Pruning(protect_ratio=1.0, minimum_ratio=1.0, keep_turns=0)
    thresholds = PruneThresholds(protect=0, minimum=100)
    loop = replace(conversation, messages=SharedList(carrying))
    assert choose_results(loop, calibrated, _NOTHING, pruning, thresholds) == (2,)
