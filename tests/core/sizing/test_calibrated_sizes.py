from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.head import Head
from gateway.core.history.view import Size
from gateway.core.sizing.calibrated_sizes import (
    Step,
    choose_ratio,
    choose_ratios,
    find_first,
    find_informative,
    find_steps,
)
from gateway.core.sizing.estimate import Sizes
from tests.builders.chat import converse

_CONVERSATION = converse(
    [{"role": role, "content": "a"} for role in ("user", "assistant") * 3]
    + [{"role": "user", "content": "e"}]
)
_SIZES = Sizes(messages=[Size(600, 2_400)] * 7, environment=300)
_HEAD = Head(
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


def make_past(*told: tuple[int, int]) -> list[Head]:
    return [replace(_HEAD, length=length, prompt_tokens=prompt) for length, prompt in told]


def make_step(ratio: float, size: Size) -> Step:
    return Step(slice(0, 1), round(ratio * size.tokens), size)


def test_a_step_is_what_two_answers_differ_by() -> None:
    found = find_steps(_SIZES, make_past((1, 1_000), (3, 2_500)))
    assert found == [Step(slice(1, 3), 1_500, Size(1_200, 4_800))]
    assert found[0].ratio == 1.25


@pytest.mark.parametrize(
    "later", [{"pivot": "00"}, {"batches": ("00",)}, {"length": 1}, {"prompt_tokens": 901}]
)
def test_answers_that_cannot_be_compared_are_no_step(later: dict[str, object]) -> None:
    past = make_past((1, 900), (3, 2_500))
    assert find_steps(_SIZES, [past[0], replace(past[1], **later)]) == []  # type: ignore[arg-type]


def test_everything_was_new_to_the_first_answer() -> None:
    found = find_first(_CONVERSATION, _SIZES, make_past((2, 3_000)))
    assert found == Step(slice(0, 2), 3_000, Size(1_500, 4_800))
    assert find_first(_CONVERSATION, _SIZES, []) is None
    assert find_first(_CONVERSATION, _SIZES, [replace(_HEAD, pivot="00")]) is None


def test_small_steps_and_implausible_ones_say_nothing_about_others() -> None:
    good = make_step(1.1, Size(500, 2_000))
    others = [make_step(1.1, Size(499, 2_000)), make_step(9.0, Size(500, 2_000))]
    assert find_informative([good, *others]) == [good]


def test_only_the_newest_steps_count() -> None:
    assert len(find_informative([make_step(1.1, Size(500, 2_000))] * 50)) == 32


def test_the_middle_step_decides_and_large_ones_weigh_more() -> None:
    small = [make_step(3.0, Size(500, 2_000))] * 3
    assert choose_ratio([make_step(1.0, Size(20_000, 80_000)), *small]) == 1.0
    assert choose_ratio([make_step(1.0, Size(500, 2_000)), *small]) == 3.0


def test_alike_content_counts_more() -> None:
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
