from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head
from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size, View, make_view
from gateway.core.sizing.calibrated_sizes import (
    Step,
    calibrate_sizes,
    choose_ratio,
    choose_ratios,
    estimate_view,
    find_first,
    find_informative,
    find_steps,
)
from gateway.core.sizing.estimate import Calibration, Estimate, Known, Sizes
from tests.builders.chat import JSON, bodies, converse, make_batch, make_pivot, measure_sizes, read
from tests.builders.recalls import make_recall
from tests.builders.state import make_head
from tests.builders.trimmed import continue_trimmed, say, shorten

_NOTHING = View(None, {})
_TALK: list[JSON] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
    {"role": "user", "content": "e"},
]
_CONVERSATION = converse(_TALK)
_SIZES = Sizes(messages=[Size(100, 400)] * 5, environment=50)
_UNKNOWN = Known(head=None, head_view=_NOTHING, calibration=Calibration())
# Three messages and the environment have 350 raw tokens; upstream counted 700.
_HEAD = make_head(_CONVERSATION, length=3, prompt_tokens=700, output_tokens=250)
_KNOWN = replace(_UNKNOWN, head=_HEAD)


def estimate(conversation: Conversation, sizes: Sizes, known: Known, view: View) -> Estimate:
    return estimate_view(conversation, calibrate_sizes(conversation, sizes, known), known, view)


def test_without_usage_the_estimate_is_the_raw_size_with_a_large_margin() -> None:
    found = estimate(_CONVERSATION, _SIZES, _UNKNOWN, _NOTHING)
    assert (found.tokens, found.unsure) == (550, int(550 * 0.7))


def test_a_calibration_reduces_the_margin() -> None:
    known = replace(_UNKNOWN, calibration=Calibration(2.0, 1))
    found = estimate(_CONVERSATION, _SIZES, known, _NOTHING)
    assert (found.tokens, found.unsure) == (1_100, 275)


def test_only_messages_added_since_the_last_usage_are_estimated() -> None:
    # The reply is message 3: 200 by the ratio of 2, but 250 by its output tokens. Message 4 has 200.
    assert calibrate_sizes(_CONVERSATION, _SIZES, _KNOWN).ratio == 2.0
    found = estimate(_CONVERSATION, _SIZES, _KNOWN, _NOTHING)
    assert (found.tokens, found.unsure) == (700 + 250 + 200, 112)


@pytest.mark.parametrize(("output", "reply"), [(40, 200), (250, 250), (300, 300), (301, 200), (9_000, 200)])
def test_a_reply_costs_its_output_tokens_unless_most_were_thinking(output: int, reply: int) -> None:
    known = replace(_KNOWN, head=replace(_HEAD, output_tokens=output))
    assert estimate(_CONVERSATION, _SIZES, known, _NOTHING).tokens == 700 + reply + 200


def make_past(*told: tuple[int, int]) -> Known:
    """Heads by length and prompt; the last one is the nearest."""
    heads = [replace(_HEAD, length=length, prompt_tokens=prompt, output_tokens=0) for length, prompt in told]
    return replace(_KNOWN, head=heads[-1], past=heads)


def test_the_difference_of_two_prompts_is_the_cost_of_the_messages_between_them() -> None:
    known = make_past((1, 150), (3, 750))
    found = calibrate_sizes(_CONVERSATION, _SIZES, known)
    assert (found.environment, found.messages[:3]) == (50.0, [100.0, 300.0, 300.0])
    assert found.ratio == pytest.approx(750 / 350)


def test_an_implausible_difference_is_ignored() -> None:
    found = calibrate_sizes(_CONVERSATION, _SIZES, make_past((1, 150), (3, 151)))
    assert found.messages[1] == pytest.approx(100 * 151 / 350)


def test_responses_to_different_views_are_not_compared() -> None:
    known = make_past((1, 150), (3, 750))
    seen = [known.past[0], replace(known.past[1], pivot="00")]
    assert calibrate_sizes(_CONVERSATION, _SIZES, replace(known, past=seen)).messages[1] != 300.0


def test_added_messages_cost_as_much_as_steps_of_similar_content() -> None:
    code, chinese = Size(1_000, 4_000), Size(1_000, 1_400)
    sizes = Sizes(messages=[code, code, chinese, code, chinese], environment=0)
    known = make_past((1, 1_000), (2, 2_000), (3, 4_000))
    found = calibrate_sizes(_CONVERSATION, sizes, known)
    assert found.messages == [1_000, 1_000, 2_000, 1_000, 2_000]
    assert found.ratio == 1.0


def test_a_step_with_hidden_reasoning_does_not_determine_the_ratio() -> None:
    sizes = Sizes(messages=[Size(1_000, 4_000)] * 5, environment=0)
    known = make_past((1, 1_200), (2, 6_200), (3, 7_400))
    assert calibrate_sizes(_CONVERSATION, sizes, known).messages[3:] == [1_200, 1_200]


def test_text_that_upstream_adds_counts_as_environment() -> None:
    sizes = Sizes(messages=[Size(1_000, 4_000)] * 5, environment=100)
    known = make_past((1, 9_900), (2, 11_100), (3, 12_300))
    found = calibrate_sizes(_CONVERSATION, sizes, known)
    assert found.messages == [1_200] * 5
    assert found.environment == 9_900 - 1_200
    assert found.total(_NOTHING) == 12_300 + 2 * 1_200


@given(bodies(min_turns=1), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9_000)), max_size=4))
def test_calibrated_sizes_are_never_negative_and_their_sum_is_the_total(
    body: bytes, told: list[tuple[int, int]]
) -> None:
    received = read(body)
    count = len(received.conversation.messages)
    told = [(min(length, count), prompt) for length, prompt in sorted(told)]
    known = make_past(*told) if told else _UNKNOWN
    found = calibrate_sizes(received.conversation, measure_sizes(received), known)
    assert len(found.messages) == count
    assert min([found.environment, *found.messages]) >= 0
    assert found.total(_NOTHING) == pytest.approx(found.environment + sum(found.messages))


def test_a_reply_that_the_client_dropped_does_not_count() -> None:
    dropped = converse([*_TALK[:3], *_TALK[4:]])
    sizes = replace(_SIZES, messages=_SIZES.messages[:4])
    assert estimate(dropped, sizes, _KNOWN, _NOTHING).tokens == 700 + 200


def test_the_same_request_again_has_the_known_usage() -> None:
    sizes = replace(_SIZES, messages=_SIZES.messages[:3])
    found = estimate(converse(_TALK[:3]), sizes, _KNOWN, _NOTHING)
    assert (found.tokens, found.unsure) == (700, 0)


def test_what_a_head_was_sent_with_is_a_part_of_its_usage_and_what_is_new_is_added() -> None:
    recall = make_recall(_CONVERSATION, 3, tokens=40)
    view = make_view(None, (), [recall])
    sent = replace(_KNOWN, head=replace(_HEAD, prompt_tokens=780), head_view=view)
    assert estimate(_CONVERSATION, _SIZES, sent, view).tokens == 780 + 250 + 200
    added = estimate(_CONVERSATION, _SIZES, _KNOWN, view)
    assert (added.tokens, added.unsure) == (700 + 250 + 200 + 2 * 40, 112 + 20)
    assert estimate(_CONVERSATION, _SIZES, _UNKNOWN, view).tokens == 550 + 40


def test_another_view_is_estimated_by_the_ratio_of_the_conversation() -> None:
    pivot = make_pivot(_CONVERSATION, 3, tokens=20, opening_tokens=100)
    found = estimate(_CONVERSATION, _SIZES, _KNOWN, make_view(pivot, ()))
    assert (found.tokens, found.unsure) == (2 * (50 + 20 + 100) + 250 + 200, 151)
    marked = make_view(None, [make_batch(_CONVERSATION, [Mark(0)])])
    assert estimate(_CONVERSATION, _SIZES, _KNOWN, marked).tokens == 2 * (550 - 84) + 50


@pytest.mark.parametrize("prompt", [1, 10**7])
def test_implausible_usage_does_not_determine_the_ratio(prompt: int) -> None:
    known = replace(_KNOWN, head=replace(_HEAD, prompt_tokens=prompt), calibration=Calibration(1.5, 3))
    assert calibrate_sizes(_CONVERSATION, _SIZES, known).ratio == 1.5


@given(bodies())
def test_an_estimate_is_never_negative_and_grows_with_the_view(body: bytes) -> None:
    received = read(body)
    sizes = measure_sizes(received)
    found = estimate(received.conversation, sizes, _UNKNOWN, _NOTHING)
    assert found.tokens == sizes.environment + sum(size.tokens for size in sizes.messages)
    assert 0 <= found.unsure <= found.tokens


_LONG = converse(
    [{"role": role, "content": "a"} for role in ("user", "assistant") * 3]
    + [{"role": "user", "content": "e"}]
)
_LONG_SIZES = Sizes(messages=[Size(600, 2_400)] * 7, environment=300)
_FIRST_HEAD = Head(
    owner="t",
    key="00",
    length=1,
    scope="s",
    tools="",
    prompt_tokens=900,
    output_tokens=0,
    growth_tokens=0.0,
    pivot=None,
    batches=(),
    conversation="c",
    parent=None,
)


def make_heads(*told: tuple[int, int]) -> list[Head]:
    return [replace(_FIRST_HEAD, length=length, prompt_tokens=prompt) for length, prompt in told]


def make_step(ratio: float, size: Size) -> Step:
    return Step(slice(0, 1), round(ratio * size.tokens), size)


def test_a_step_is_the_difference_of_two_responses() -> None:
    found = find_steps(_LONG_SIZES, make_heads((1, 1_000), (3, 2_500)))
    assert found == [Step(slice(1, 3), 1_500, Size(1_200, 4_800))]
    assert found[0].ratio == 1.25


@pytest.mark.parametrize(
    "later",
    [{"pivot": "00"}, {"batches": ("00",)}, {"recalls": ("00",)}, {"length": 1}, {"prompt_tokens": 901}],
)
def test_incomparable_responses_make_no_step(later: dict[str, object]) -> None:
    past = make_heads((1, 900), (3, 2_500))
    assert find_steps(_LONG_SIZES, [past[0], replace(past[1], **later)]) == []  # type: ignore[arg-type]


def test_the_first_step_includes_everything() -> None:
    found = find_first(_LONG, _LONG_SIZES, make_heads((2, 3_000)))
    assert found == Step(slice(0, 2), 3_000, Size(1_500, 4_800))
    assert find_first(_LONG, _LONG_SIZES, []) is None
    assert find_first(_LONG, _LONG_SIZES, [replace(_FIRST_HEAD, pivot="00")]) is None
    assert find_first(_LONG, _LONG_SIZES, [replace(_FIRST_HEAD, recalls=("00",))]) is None


def test_no_step_is_taken_where_a_client_has_shortened_what_was_sent() -> None:
    past = [replace(head, pivot="00", covers=2) for head in make_heads((2, 900), (3, 1_500), (5, 2_700))]
    steps = [Step(slice(2, 3), 600, Size(600, 2_400)), Step(slice(3, 5), 1_200, Size(1_200, 4_800))]
    assert find_steps(_LONG_SIZES, past, [0, 1, 5]) == steps  # under the pivot, and later
    assert find_steps(_LONG_SIZES, past, [3]) == steps[:1]
    assert find_steps(_LONG_SIZES, past, [2]) == []  # it may have been shortened after the second response
    assert find_first(_LONG, _LONG_SIZES, make_heads((2, 3_000)), [1]) is None


def test_a_history_with_shortened_messages_takes_the_calibration() -> None:
    """Their usage was that of the longer form; taken for their size now, it doubled all estimates."""
    whole = say(5)
    conversation = continue_trimmed(say(4), [whole[0], *shorten(whole[5:], 1)]).conversation
    sizes = Sizes(messages=[Size(600, 2_400)] * len(whole), environment=300)
    past = [(5, 3_300), (9, 5_700), (13, 8_100)]
    known = replace(make_past(*past), calibration=Calibration(1.1, 9))
    assert calibrate_sizes(conversation, sizes, known).ratio == 1.1


def test_small_and_implausible_steps_are_not_informative() -> None:
    good = make_step(1.1, Size(500, 2_000))
    others = [make_step(1.1, Size(499, 2_000)), make_step(9.0, Size(500, 2_000))]
    assert find_informative([good, *others]) == [good]


def test_only_the_newest_steps_count() -> None:
    assert len(find_informative([make_step(1.1, Size(500, 2_000))] * 50)) == 32


def test_the_ratio_is_the_weighted_median() -> None:
    small = [make_step(3.0, Size(500, 2_000))] * 3
    assert choose_ratio([make_step(1.0, Size(20_000, 80_000)), *small]) == 1.0
    assert choose_ratio([make_step(1.0, Size(500, 2_000)), *small]) == 3.0


def test_similar_content_has_a_larger_weight() -> None:
    steps = [make_step(1.0, Size(4_000, 16_000))] * 3 + [make_step(2.0, Size(1_000, 1_400))]
    assert choose_ratios(steps, [Size(900, 1_260), Size(900, 3_600)]) == [2.0, 1.0]
    assert choose_ratio(steps) == 1.0


_sizes = st.builds(Size, st.integers(0, 10**7), st.integers(0, 10**7))


@given(st.lists(st.tuples(st.integers(0, 10**8), _sizes), min_size=1, max_size=40), st.lists(_sizes))
def test_a_ratio_is_always_one_of_the_steps(told: list[tuple[int, Size]], added: list[Size]) -> None:
    telling = find_informative([Step(slice(0, 1), true, raw) for true, raw in told])
    if telling:
        chosen = choose_ratios(telling, added)
        assert len(chosen) == len(added)
        assert {choose_ratio(telling), *chosen} <= {step.ratio for step in telling}
