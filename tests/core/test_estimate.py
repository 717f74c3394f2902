import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.estimate import Calibration, is_plausible_ratio, upper_bound_tokens
from gateway.core.head import Head
from tests.conversations import bodies, converse, read

_CONVERSATION = converse(
    [{"role": role, "content": "a"} for role in ("user", "assistant") * 2]
    + [{"role": "user", "content": "e"}]
)
_HEAD = Head(
    owner="t",
    key=_CONVERSATION.chain[3].hex(),
    length=3,
    scope="s",
    tools="",
    prompt_tokens=700,
    output_tokens=40,
    growth_tokens=0.0,
    pivot=None,
    batches=(),
    conversation="c",
    parent=None,
)


def test_the_first_sample_counts_at_once_and_later_ones_by_a_third() -> None:
    first = Calibration().with_sample(200, 100)
    assert first == Calibration(2.0, 1)
    assert first.with_sample(500, 100) == Calibration(3.0, 2)


@pytest.mark.parametrize(("true", "raw"), [(100, 0), (100, -1), (19, 100), (801, 100), (0, 100)])
def test_samples_that_no_tokenizer_makes_teach_nothing(true: int, raw: int) -> None:
    assert Calibration(1.5, 2).with_sample(true, raw) == Calibration(1.5, 2)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(-5, 10**6)), max_size=9))
def test_a_calibration_stays_within_what_tokenizers_do(samples: list[tuple[int, int]]) -> None:
    calibration = Calibration()
    for true, raw in samples:
        calibration = calibration.with_sample(true, raw)
    assert 0.2 <= calibration.ratio <= 8.0


@given(bodies(), st.floats(0.2, 0.99))
def test_the_upper_bound_lies_above_every_tokenizer_that_makes_no_more_tokens_than_bytes(
    body: bytes, share: float
) -> None:
    received = read(body)
    bound = upper_bound_tokens(received.conversation, None, len(body))
    if any(message.has_media for message in received.conversation.messages):
        assert bound is None
    else:
        assert bound is not None and bound >= int(share * len(body))


def test_the_upper_bound_behind_a_head_counts_what_was_added_by_its_bytes() -> None:
    added = sum(message.size_bytes + 16 for message in _CONVERSATION.messages[3:])
    assert upper_bound_tokens(_CONVERSATION, _HEAD, 10**6) == 740 + added


@pytest.mark.parametrize(("ratio", "expected"), [(0.19, False), (0.2, True), (8.0, True), (8.1, False)])
def test_tokenizers_differ_only_so_much(ratio: float, expected: bool) -> None:
    assert is_plausible_ratio(ratio) == expected
