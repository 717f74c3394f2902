from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sizing.estimate import Calibration, is_plausible_ratio, upper_bound_tokens
from tests.builders.chat import bodies, converse, read
from tests.builders.state import make_head

_NEW = Calibration()
_CONVERSATION = converse(
    [{"role": role, "content": "a"} for role in ("user", "assistant") * 2]
    + [{"role": "user", "content": "e"}]
)
_HEAD = make_head(_CONVERSATION, length=3, prompt_tokens=700, output_tokens=40)


def learn(ratios: Sequence[float], known: Calibration = _NEW) -> Calibration:
    for ratio in ratios:
        known = known.with_sample(round(ratio * 10_000), 10_000)
    return known


def test_the_ratio_is_the_first_sample_and_later_the_median() -> None:
    assert learn([2.0]) == Calibration(2.0, 1, (2.0,))
    assert learn([2.0, 5.0]).ratio == 2.0
    assert learn([2.0, 5.0, 2.1]).ratio == 2.1


@pytest.mark.parametrize(
    ("true", "raw"), [(1_000, 0), (1_000, -1), (490, 1_000), (8_001, 1_000), (0, 100), (299, 280)]
)
def test_implausible_and_small_samples_are_ignored(true: int, raw: int) -> None:
    assert Calibration(1.5, 2).with_sample(true, raw) == Calibration(1.5, 2)


@given(st.lists(st.floats(1.1, 1.2), min_size=1, max_size=12), st.floats(0.5, 8.0), st.integers(0, 12))
def test_a_single_outlier_never_leaves_the_range_of_the_others(
    honest: list[float], wild: float, place: int
) -> None:
    known = learn(honest[: max(place, 1)])
    for ratio in (wild, *honest[max(place, 1) :]):
        known = learn([ratio], known)
        assert 1.0999 <= known.ratio <= 1.2001


@given(
    st.lists(st.floats(0.5, 8.0), max_size=20),
    st.lists(st.floats(1.4, 1.5), min_size=5, max_size=12),
)
def test_a_new_tokenizer_is_followed_after_nine_samples_whatever_was_before(
    before: list[float], after: list[float]
) -> None:
    known = learn(after[:5], learn(before))
    # Once there are nine samples, five are the majority, and another five replace everything.
    known = learn(after[:4], known)
    assert 1.3999 <= known.ratio <= 1.5001


@given(st.integers(1, 20))
def test_a_change_is_followed_within_five_samples(before: int) -> None:
    known = learn([1.6] * 5, learn([1.0] * before))
    assert known.ratio == 1.6


def test_a_calibration_of_an_older_version_counts_as_one_sample() -> None:
    old = Calibration(1.5, 7)
    assert learn([4.0], old).ratio == 1.5
    assert learn([4.0, 1.6], old).ratio == 1.6


@pytest.mark.parametrize(
    ("samples", "prompt", "expected"), [(0, 300, True), (2, 300, True), (3, 9_000, False), (0, 299, False)]
)
def test_samples_are_wanted_until_an_outlier_can_be_recognized(
    samples: int, prompt: int, expected: bool
) -> None:
    assert Calibration(1.0, samples).wants_sample(prompt) == expected


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(-5, 10**6)), max_size=9))
def test_a_calibration_stays_within_what_tokenizers_do(samples: list[tuple[int, int]]) -> None:
    calibration = Calibration()
    for true, raw in samples:
        calibration = calibration.with_sample(true, raw)
    assert 0.5 <= calibration.ratio <= 8.0


@given(bodies(), st.floats(0.2, 0.99))
def test_the_upper_bound_holds_for_any_tokenizer_with_at_most_one_token_per_byte(
    body: bytes, share: float
) -> None:
    received = read(body)
    bound = upper_bound_tokens(received.conversation.messages, None, len(body))
    if any(message.has_media for message in received.conversation.messages):
        assert bound is None
    else:
        assert bound is not None and bound >= int(share * len(body))


def test_the_upper_bound_after_a_head_counts_the_bytes_added_since() -> None:
    added = sum(message.size_bytes + 16 for message in _CONVERSATION.messages[3:])
    assert upper_bound_tokens(_CONVERSATION.messages[3:], _HEAD, 10**6) == 740 + added


@pytest.mark.parametrize(("ratio", "expected"), [(0.19, False), (0.2, True), (8.0, True), (8.1, False)])
def test_a_ratio_is_plausible_within_bounds(ratio: float, expected: bool) -> None:
    assert is_plausible_ratio(ratio) == expected
