import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limits.model_limits import Limits
from gateway.wire.model_list import MAX_BYTES, parse_model_list


def parse(*entries: object) -> dict[str, Limits]:
    return parse_model_list(json.dumps({"object": "list", "data": entries}).encode())


def read(**fields: Any) -> Limits:
    """The limits of one model with these fields."""
    return parse({"id": "m", "object": "model", "created": 1_700_000_000, **fields}).get("m", Limits())


SHAPES = [
    # vLLM, SGLang
    ({"root": "/models/m", "parent": None, "max_model_len": 32_768}, Limits(context=32_768)),
    # OpenRouter: the limit of the model, and the smaller one of its first provider
    (
        {
            "context_length": 131_072,
            "top_provider": {"context_length": 65_536, "max_completion_tokens": 16_384},
            "per_request_limits": None,
        },
        Limits(context=65_536, output=16_384),
    ),
    (
        {"context_length": 8_192, "top_provider": {"context_length": None, "max_completion_tokens": None}},
        Limits(context=8_192),
    ),
    # Groq
    (
        {"context_window": 131_072, "max_completion_tokens": 32_768},
        Limits(context=131_072, output=32_768),
    ),
    # Vercel
    ({"context_window": 200_000, "max_tokens": 64_000}, Limits(context=200_000, output=64_000)),
    # Mistral, LM Studio
    ({"max_context_length": 32_768}, Limits(context=32_768)),
    ({"max_context_length": 131_072, "loaded_context_length": 4_096}, Limits(context=4_096)),
    # llama.cpp: the window of the training is no limit, the window of the server is
    ({"meta": {"n_ctx_train": 131_072, "n_ctx": 8_192, "n_params": 8_030_261_312}}, Limits(context=8_192)),
    ({"meta": {"n_ctx_train": 131_072, "n_params": 8_030_261_312}}, Limits()),
    ({"meta": None}, Limits()),
    # DeepInfra
    ({"metadata": {"context_length": 40_960, "max_tokens": 40_960}}, Limits(context=40_960)),
    # Copilot
    (
        {
            "capabilities": {
                "limits": {
                    "max_context_window_tokens": 128_000,
                    "max_prompt_tokens": 100_000,
                    "max_output_tokens": 16_384,
                }
            }
        },
        Limits(context=128_000, input=100_000, output=16_384),
    ),
    # GitHub models
    (
        {"limits": {"max_input_tokens": 131_072, "max_output_tokens": 4_096}},
        Limits(input=131_072, output=4_096),
    ),
    # Anthropic
    ({"max_input_tokens": 200_000, "max_tokens": 64_000}, Limits(input=200_000, output=64_000)),
    # OpenAI
    ({"owned_by": "system"}, Limits()),
]


@pytest.mark.parametrize(("fields", "limits"), SHAPES, ids=lambda value: str(value)[:60])
def test_the_limits_in_each_known_shape_are_found(fields: dict[str, object], limits: Limits) -> None:
    assert read(**fields) == limits


def test_an_output_as_large_as_the_window_is_no_limit() -> None:
    assert read(context_length=8_192, max_completion_tokens=8_192) == Limits(context=8_192)


def test_the_list_may_be_the_document_or_under_models() -> None:
    together = [{"id": "a", "type": "chat", "context_length": 32_768}]
    cohere = {"models": [{"name": "a", "context_length": 32_768}]}
    both = {"models": [{"name": "a", "size": ""}], "data": together}
    for value in (together, cohere, both):
        assert parse_model_list(json.dumps(value).encode()) == {"a": Limits(context=32_768)}


def test_models_without_limits_are_left_out() -> None:
    assert parse({"id": "a"}, {"id": "b", "max_model_len": 4_096}, {"max_model_len": 8_192}) == {
        "b": Limits(context=4_096)
    }


def test_an_adapter_has_the_window_of_its_parent() -> None:
    base = {"id": "base", "parent": None, "max_model_len": 4_096}
    lora = {"id": "lora", "parent": "base", "max_model_len": None}
    assert parse(lora, base) == {"base": Limits(context=4_096), "lora": Limits(context=4_096)}
    assert parse({"id": "lora", "parent": "lora"}, {"id": "x", "parent": "y"}) == {}


def test_the_smallest_limit_of_several_deployments_with_one_name_counts() -> None:
    entries = [{"id": "m", "max_model_len": n} for n in (32_768, 8_192, 16_384)]
    assert parse(*entries) == {"m": Limits(context=8_192)}


@pytest.mark.parametrize(
    ("number", "tokens"),
    [
        ("32768", 32_768),
        ("32768.0", 32_768),
        ("1e5", 100_000),
        ('"32768"', 32_768),
        ("256", 256),
        ("100000000", 100_000_000),
        ("255", None),
        ("0", None),
        ("-32768", None),
        ("100000001", None),
        ("32768.5", None),
        ("true", None),
        ("null", None),
        ('""', None),
        ('"true"', None),
        ('"32k"', None),
        ('"32_768"', None),
        ('" 32768"', None),
        ('"٣٢٧٦٨"', None),
        ("1e999", None),
        ("9" * 5_000, None),
        ('"' + "9" * 5_000 + '"', None),
        ("[32768]", None),
        ('{"tokens": 32768}', None),
    ],
)
def test_implausible_numbers_are_ignored(number: str, tokens: int | None) -> None:
    data = f'{{"data": [{{"id": "m", "max_model_len": {number}}}]}}'.encode()
    assert parse_model_list(data).get("m", Limits()).context == tokens


def test_an_invalid_field_or_entry_does_not_affect_the_others() -> None:
    odd: list[object] = [
        7,
        None,
        "m",
        [],
        {"id": 7, "max_model_len": 4_096},
        {"id": "", "max_model_len": 4_096},
    ]
    long_name = {"id": "m" * 257, "max_model_len": 4_096}
    good = {"id": "m", "max_model_len": "many", "context_window": 8_192, "top_provider": 7, "meta": []}
    assert parse(*odd, long_name, good) == {"m": Limits(context=8_192)}


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"null", b"7", b'"x"', b"{}", b"[]", b'{"data":null}', b'{"data":{"id":"m"}}'),
        *(b"<html>", b'{"data":[', b"\xff\xfe", b'{"data":[{"id":"\\ud800","n_ctx":4096}]}'),
        *(b"[" * 100_000, b'{"data":' * 50_000, b'{"data":[' + b'{"meta":' * 50_000),
    ],
    ids=lambda data: data[:20],
)
def test_anything_but_a_model_list_gives_no_limits(data: bytes) -> None:
    assert parse_model_list(data) == {}


def test_a_list_that_is_too_large_gives_no_limits() -> None:
    one = b'{"id":"m","max_model_len":4096}'
    assert parse_model_list(b"[" + one + b" " * (MAX_BYTES - len(one) - 2) + b"]") != {}
    assert parse_model_list(b"[" + one + b" " * (MAX_BYTES - len(one) - 1) + b"]") == {}
    assert parse_model_list(b"[" + one + b",0" * 1_000_001 + b"]") == {}


def test_at_most_20_000_models_are_read() -> None:
    data = b",".join(b'{"id":"%d","max_model_len":4096}' % number for number in range(20_500))
    assert len(parse_model_list(b"[" + data + b"]")) == 20_000


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                ["data", "models", "id", "parent", "max_model_len", "meta", "n_ctx", "limits", "max_tokens"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@given(st.one_of(st.binary(), JSON.map(lambda value: json.dumps(value).encode())))
def test_any_document_gives_only_plausible_limits_and_never_raises(data: bytes) -> None:
    for name, limits in parse_model_list(data).items():
        assert 0 < len(name) <= 256
        for tokens in (limits.context, limits.input, limits.output):
            assert tokens is None or (type(tokens) is int and 256 <= tokens <= 100_000_000)
        assert limits != Limits()
