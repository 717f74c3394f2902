"""Refusals of any wording: what is never read as a limit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.refusal import (
    Overflow,
    Refusal,
    parse_image_limit,
    parse_overflow,
    parse_token_numbers,
)
from tests.shared_data import SHARED, requires_shared

_ANTHROPIC = "prompt is too long: 213462 tokens > 200000 maximum"


def _samples() -> Any:
    return json.loads((SHARED / "data" / "overflow_errors.json").read_text("utf-8"))


@requires_shared
@pytest.mark.parametrize("status", [200, 400, 413, 422])
def test_every_recorded_overflow_error_is_recognized(status: int) -> None:
    texts = [text for provider in _samples()["positive"].values() for text in provider]
    assert [text for text in texts if parse_overflow(Refusal(status, (text,))) is None] == []


@requires_shared
@pytest.mark.parametrize("status", [200, 400, 401, 413, 422, 429, 500, 529])
def test_no_other_recorded_error_is_an_overflow(status: int) -> None:
    assert [text for text in _samples()["negative"] if parse_overflow(Refusal(status, (text,)))] == []


@requires_shared
def test_the_recorded_numbers_are_found_exactly() -> None:
    for sample in _samples()["numbers"]:
        overflow = parse_overflow(Refusal(400, (sample["text"],)))
        assert overflow is not None
        assert (overflow.context or overflow.input, overflow.used) == (sample["limit"], sample["used"]), (
            sample
        )
    stated = {sample["text"] for sample in _samples()["numbers"]}
    for text in (text for provider in _samples()["positive"].values() for text in provider):
        overflow = parse_overflow(Refusal(400, (text,)))
        assert overflow is not None
        assert text in stated or overflow == Overflow(kind=overflow.kind), text


@pytest.mark.parametrize(
    "filler", ["a", " ", "1", "1,", "'", " 'a", "exceeds ", "context length ", "[{", "\\n", "号"]
)
def test_both_ends_of_a_huge_text_are_read(filler: str) -> None:
    huge = filler * (10_000_000 // len(filler))
    assert parse_overflow(Refusal(400, (f"{_ANTHROPIC}. {huge}",))) is not None
    assert (
        parse_overflow(Refusal(400, (f"{_ANTHROPIC}. Prompt: {huge}", "invalid_request_error"))) is not None
    )
    assert parse_overflow(Refusal(429, (huge,) * 100)) is None


def test_a_huge_quoted_prompt_does_not_hide_the_end_of_the_error() -> None:
    prompt = "the context window is exceeded, the maximum context length is 4096 tokens, " * 100_000
    assert parse_overflow(Refusal(400, (f"Invalid value: '{prompt}'. Must be a list.",))) is None
    assert parse_overflow(Refusal(400, (f"Could not parse '{prompt}",))) is None
    text = f"The prompt '{prompt}' does not fit: the maximum context length is 8192 tokens."
    assert parse_overflow(Refusal(400, (text,))) == Overflow(context=8192)


_ODD = (
    "maximum context length| is |8192| tokens|exceeds| the |context window|rate limit|max_tokens|images"
    "|at most |too large|>| + |'|\"|:|{|\n|٣|\ud800|\\"
)
_WORDS = st.sampled_from(_ODD.split("|"))


@given(st.integers(100, 599), st.lists(st.lists(_WORDS, max_size=12).map("".join) | st.text(), max_size=30))
def test_any_text_can_be_parsed(status: int, texts: list[str]) -> None:
    overflow = parse_overflow(Refusal(status, tuple(texts)))
    if overflow is not None:
        assert status not in (401, 402, 403, 407, 429)
        for limit in (overflow.context, overflow.input):
            assert limit is None or 256 <= limit <= 100_000_000


@given(
    st.text(alphabet="0123456789 .,[](:>+km", max_size=60),
    st.sampled_from(["context length is ", "max images: ", ""]),
)
def test_any_found_number_is_plausible(tail: str, head: str) -> None:
    numbers = parse_token_numbers(head + tail)
    for limit in (numbers.context, numbers.input):
        assert limit is None or 256 <= limit <= 100_000_000
        assert limit is None or numbers.used is None or numbers.prompt_tokens is None or limit > 0
    images = parse_image_limit(head + tail)
    assert images is None or images >= 0
