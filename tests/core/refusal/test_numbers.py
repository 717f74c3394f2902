import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.refusal.numbers import (
    TokenNumbers,
    parse_byte_limit,
    parse_image_limit,
    parse_token_numbers,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "maximum context length is 4097 tokens. however, you requested 4703 tokens "
            "(3703 in the messages, 500 in the functions, 500 in the completion).",
            TokenNumbers(context=4097, used=4703, prompt=4203),
        ),
        (
            "maximum context length is 8191 tokens, however you requested 10346 tokens "
            "(10341 in your prompt; 5 for the completion).",
            TokenNumbers(context=8191, used=10346, prompt=10341),
        ),
        (
            "context limit: 199999 + 8192 > 200000",
            TokenNumbers(context=200_000, used=199_999, prompt=199_999),
        ),
        (
            "requested token count exceeds the model's maximum context length of 4096 tokens. you "
            "requested a "
            "total of 5000 tokens: 4500 tokens from the input messages and 500 tokens for the completion.",
            TokenNumbers(context=4096, used=5000, prompt=4500),
        ),
        (
            "inputs tokens + max new tokens must be <= 4096. given: 3974 inputs tokens and 1024 max new "
            "tokens",
            TokenNumbers(context=4096, used=3974, prompt=3974),
        ),
        (
            "max tokens is too large: 64000. this model's maximum context length is 64001 tokens and your "
            "request has 24235 input tokens (64000 > 64001 - 24235).",
            TokenNumbers(context=64001, used=24235, prompt=24235),
        ),
        ("n ctx: 4096\nn prompt tokens: 9000", TokenNumbers(context=4096, used=9000, prompt=9000)),
        (
            "request (4096 tokens) exceeds the available context size (4096 tokens)",
            TokenNumbers(context=4096, used=4096, prompt=4096),
        ),
        ("maximum context length is 128k tokens", TokenNumbers(context=128_000)),
        ("maximum context length is 1m tokens", TokenNumbers(context=1_000_000)),
        ("context length of only 4096 tokens", TokenNumbers(context=4096)),
        ("maximum context length for this model is 8192", TokenNumbers(context=8192)),
        ("range of input length should be [1,6144]", TokenNumbers(input=6144)),
        ("prompt contains at least 262145 input tokens", TokenNumbers(used=262_145)),
        ("you requested about 70000 tokens", TokenNumbers(used=70_000)),
    ],
)
def test_each_number_is_assigned_to_its_meaning(text: str, expected: TokenNumbers) -> None:
    assert parse_token_numbers(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "context window exceeds limit (2013)",
        "exceeded max context length by 400 tokens",
        "maximum context length is 255 tokens",
        "maximum context length is 100000001 tokens",
        "maximum context length is 8192 tokens. however, your messages resulted in 300 tokens.",
        "error 4096: the prompt does not fit, see request 131072",
    ],
)
def test_an_implausible_limit_is_ignored(text: str) -> None:
    assert parse_token_numbers(text) == TokenNumbers()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("too many images in request. max is 500.", 500),
        ("at most 4 image(s) may be provided in one request.", 4),
        ("too many images provided. this model supports up to 5 images", 5),
        ("messages: too many images and documents: 30 + 90 > 100", 100),
        ("please use fewer than 16 images in your request", 15),
        ("maximum number of images: 8", 8),
        ("dimensions exceed max allowed size for many image requests: 2000 pixels", None),
        ("request exceeded the allowed number of images", None),
    ],
)
def test_the_limit_of_images_is_found(text: str, expected: int | None) -> None:
    assert parse_image_limit(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("request payload size exceeds the limit: 20971520 bytes.", 20_971_520),
        ("maximum request body size 1048576 exceeded, actual body size 2000000", 1_048_576),
        ("request body too large, limit is 4 mb", 4_000_000),
        ("body of 9.5mib exceeds 4.5 mib", 4_718_592),
        ("413 request entity too large", None),
        ("request exceeds the maximum size", None),
        ("limit reached, code 2013", None),
    ],
)
def test_the_limit_of_bytes_is_found(text: str, expected: int | None) -> None:
    assert parse_byte_limit(text) == expected


@given(
    st.text(alphabet="0123456789 .,[](:>+km", max_size=60),
    st.sampled_from(["context length is ", "max images: ", ""]),
)
def test_any_found_number_is_plausible(tail: str, head: str) -> None:
    numbers = parse_token_numbers(head + tail)
    for limit in (numbers.context, numbers.input):
        assert limit is None or 256 <= limit <= 100_000_000
        assert limit is None or numbers.used is None or numbers.prompt is None or limit > 0
    images = parse_image_limit(head + tail)
    assert images is None or images >= 0


@given(st.integers(256, 10**8), st.integers(1, 10**9))
def test_a_limit_above_the_refused_size_is_ignored(limit: int, used: int) -> None:
    text = f"maximum context length is {limit} tokens. however, your messages resulted in {used} tokens."
    numbers = parse_token_numbers(text)
    assert numbers == (
        TokenNumbers(context=limit, used=used, prompt=used) if limit <= used else TokenNumbers()
    )
