from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size
from gateway.core.sizing.estimate import Calibration, Sizes
from gateway.core.sizing.truncation import Expected, expect_usage, is_truncated
from tests.builders.chat import converse, make_batch, make_pivot
from tests.builders.state import make_head

_CONVERSATION = converse(
    [{"role": role, "content": "a"} for role in ("user", "assistant") * 2]
    + [{"role": "user", "content": "e"}]
)
_SIZES = Sizes(messages=[Size(1_000, 4_000)] * 5, environment=500)
_HEAD = make_head(_CONVERSATION, length=3, prompt_tokens=4_200, output_tokens=40)
_SETTLED = Calibration(1.2, 3)


def test_usage_is_compared_with_the_last_one_and_with_a_full_estimate() -> None:
    expected = expect_usage(_CONVERSATION, _SIZES, None, (), _HEAD, _SETTLED)
    assert expected == Expected(before=4_200, added=2_000, whole=6_600)


def test_without_a_settled_calibration_there_is_no_full_estimate() -> None:
    expected = expect_usage(_CONVERSATION, _SIZES, None, (), _HEAD, Calibration(1.2, 2))
    assert expected == Expected(before=4_200, added=2_000, whole=None)


def test_the_active_view_is_measured_as_sent() -> None:
    batch = make_batch(_CONVERSATION, [Mark(1)], length=3)
    head = replace(_HEAD, batches=(batch.key,))
    expected = expect_usage(_CONVERSATION, _SIZES, None, (batch,), head, _SETTLED)
    assert expected == Expected(before=4_200, added=2_000, whole=int(1.2 * (5_500 - 984)))


def test_no_usage_is_expected_without_a_comparable_one() -> None:
    for before in (
        None,
        replace(_HEAD, prompt_tokens=0),
        replace(_HEAD, pivot="00"),
        replace(_HEAD, batches=("00",)),
    ):
        assert expect_usage(_CONVERSATION, _SIZES, None, (), before, _SETTLED) is None
    pivot = make_pivot(_CONVERSATION, 3)
    assert expect_usage(_CONVERSATION, _SIZES, pivot, (), _HEAD, _SETTLED) is None


def test_no_usage_is_expected_with_pictures() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    seen = converse([{"role": "user", "content": [picture]}, *[{"role": "user", "content": "a"}] * 4])
    assert expect_usage(seen, _SIZES, None, (), _HEAD, _SETTLED) is None


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        # In Ollama the prompt stays at the full window of 8,192.
        (8_192, Expected(before=8_192, added=1_200, whole=14_000)),
        (7_900, Expected(before=8_100, added=600, whole=14_000)),
        (8_192, Expected(before=8_190, added=200, whole=30_000)),
        # The model was loaded again with a smaller window.
        (4_096, Expected(before=20_000, added=700, whole=20_800)),
        # The tokenizer is unknown, but much was added and the number is the same.
        (8_192, Expected(before=8_192, added=2_000, whole=None)),
    ],
)
def test_a_prompt_that_stays_at_a_window_was_truncated(prompt: int, expected: Expected) -> None:
    assert is_truncated(prompt, expected)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        # The estimate is right, or the content costs much less than the calibration says.
        (14_000, Expected(before=12_800, added=1_200, whole=14_000)),
        (8_000, Expected(before=7_000, added=1_200, whole=16_000)),
        # The same request again.
        (8_192, Expected(before=8_192, added=0, whole=8_000)),
        # Reasoning was dropped from the history while little was added.
        (12_000, Expected(before=12_100, added=900, whole=13_000)),
        # Only uncached tokens are counted: those added, and perhaps a block.
        (700, Expected(before=20_000, added=600, whole=22_000)),
        (2_900, Expected(before=2_800, added=1_100, whole=30_000)),
        (1_561, Expected(before=68_157, added=229, whole=65_110)),
        # Too little is missing to matter.
        (3_000, Expected(before=3_000, added=500, whole=5_000)),
    ],
)
def test_usage_with_another_explanation_is_not_a_truncation(prompt: int, expected: Expected) -> None:
    assert not is_truncated(prompt, expected)


_counts = st.integers(0, 10**7)
_expected = st.builds(Expected, before=st.integers(1, 10**7), added=_counts, whole=st.none() | _counts)


@given(_expected, _counts)
def test_a_prompt_that_grew_with_what_was_added_was_not_truncated(expected: Expected, more: int) -> None:
    assert not is_truncated(expected.before + expected.added // 5 + 1 + more, expected)


@given(_expected, st.integers(1, 10**7), st.integers(0, 10**6))
def test_with_less_expected_less_is_missing(expected: Expected, prompt: int, less: int) -> None:
    smaller = replace(expected, whole=max(0, (expected.whole or 0) - less))
    assert is_truncated(prompt, expected) or not is_truncated(prompt, smaller)


@pytest.mark.parametrize("step", [300, 700, 1_500])
@pytest.mark.parametrize("window", [8_192, 16_384, 32_768])
def test_a_growing_conversation_is_noticed_before_it_is_three_windows_long(window: int, step: int) -> None:
    prompts = range(2_000, 3 * window, step)
    noticed = [
        prompt
        for prompt in prompts
        if is_truncated(
            min(prompt, window), Expected(before=min(prompt - step, window), added=step, whole=prompt)
        )
    ]
    assert noticed and noticed[0] > window
