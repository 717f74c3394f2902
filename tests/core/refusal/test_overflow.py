import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.refusal.overflow import Overflow, Refusal, parse_overflow
from tests.shared_data import SHARED, requires_shared

_ANTHROPIC = "prompt is too long: 213462 tokens > 200000 maximum"
_READ = Overflow(context=200_000, used=213_462, prompt_tokens=213_462)


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


def test_the_size_of_the_prompt_is_used_only_if_it_is_exact() -> None:
    vllm = (
        "This model's maximum context length is 262144 tokens. However, you requested 0 output tokens "
        "and your "
        "prompt contains at least 262145 input tokens, for a total of at least 262145 tokens."
    )
    openrouter = "maximum context length is 65536 tokens. However, you requested about 70000 tokens"
    assert parse_overflow(Refusal(400, (vllm,))) == Overflow(context=262_144, used=262_145)
    assert parse_overflow(Refusal(400, (openrouter,))) == Overflow(context=65_536, used=70_000)


@pytest.mark.parametrize(
    ("status", "is_overflow"), [(400, True), (413, True), (422, False), (429, False), (500, False)]
)
def test_an_error_without_a_body_is_judged_by_its_status(status: int, is_overflow: bool) -> None:
    assert parse_overflow(Refusal(status, (), is_empty=True)) == (Overflow() if is_overflow else None)


def test_an_error_with_an_empty_text_is_not_one_without_a_body() -> None:
    assert parse_overflow(Refusal(400, ())) is None
    assert parse_overflow(Refusal(400, ("",))) is None


@pytest.mark.parametrize("status", [401, 402, 403, 407, 429])
def test_some_statuses_are_never_about_size(status: int) -> None:
    assert parse_overflow(Refusal(status, (_ANTHROPIC,))) is None
    assert parse_overflow(Refusal(200, (_ANTHROPIC, str(status)))) is None


@pytest.mark.parametrize("status", [404, 500, 502, 503])
def test_a_server_error_is_an_overflow_only_if_it_names_the_window(status: int) -> None:
    assert parse_overflow(Refusal(status, (_ANTHROPIC,))) == _READ
    assert parse_overflow(Refusal(200, (_ANTHROPIC, str(status)))) == _READ
    for vague in (
        "Please reduce the length of the messages",
        "413 Request Entity Too Large",
        "too many images",
    ):
        assert parse_overflow(Refusal(400, (vague,))) is not None
        assert parse_overflow(Refusal(status, (vague,))) is None
        assert parse_overflow(Refusal(200, (vague, str(status)))) is None


def test_a_code_is_enough_if_the_message_is_unclear() -> None:
    assert parse_overflow(Refusal(400, ("Bad Request", "context_length_exceeded"))) == Overflow()
    assert parse_overflow(Refusal(413, ("Request too large", "rate_limit_exceeded"))) is None


def test_the_first_text_with_a_number_takes_precedence() -> None:
    other = "maximum context length is 4096 tokens"
    assert parse_overflow(Refusal(400, ("maximum context length is 8192 tokens", other))) == Overflow(
        context=8192
    )


def test_a_phrase_never_spans_two_texts() -> None:
    assert parse_overflow(Refusal(400, ("Value is greater than", "the context window of the screen"))) is None


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


def test_a_number_that_was_cut_is_ignored() -> None:
    start = "maximum context length is 131072 tokens"
    for shift in range(60):
        text = "a" * (4_096 - shift) + " " + start + "b" * 9_000
        overflow = parse_overflow(Refusal(400, (text,)))
        assert overflow is None or overflow.context in (None, 131_072)


def test_codes_after_long_texts_are_read() -> None:
    long = "a" * 20_000
    assert parse_overflow(Refusal(400, (long, long, "context_length_exceeded"))) == Overflow()
    assert parse_overflow(Refusal(400, (_ANTHROPIC, long, long, "rate_limit_error"))) is None


_WORDS = st.sampled_from(
    [
        *(
            "maximum context length",
            " is ",
            "8192",
            " tokens",
            "exceeds",
            " the ",
            "context window",
            "rate limit",
        ),
        *(
            "max_tokens",
            "images",
            "at most ",
            "too large",
            ">",
            " + ",
            "'",
            '"',
            ":",
            "{",
            "\n",
            "٣",
            "\ud800",
            "\\",
        ),
    ]
)


@given(st.integers(100, 599), st.lists(st.lists(_WORDS, max_size=12).map("".join) | st.text(), max_size=30))
def test_any_text_can_be_parsed(status: int, texts: list[str]) -> None:
    overflow = parse_overflow(Refusal(status, tuple(texts)))
    if overflow is not None:
        assert status not in (401, 402, 403, 407, 429)
        for limit in (overflow.context, overflow.input):
            assert limit is None or 256 <= limit <= 100_000_000
