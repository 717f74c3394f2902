"""The bundled table of limits: names as clients and providers write them."""

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limits.model_limits import Limits
from gateway.limits.model_table import ModelTable, parse_table

_TABLE = ModelTable.load()
_GPT_4O = Limits(context=128_000, output=16_384)
_GPT_5 = Limits(context=400_000, input=272_000, output=128_000)
_SONNET_4 = Limits(context=200_000, output=64_000)


@pytest.mark.parametrize(
    ("model", "limits"),
    [
        ("gpt-4o", _GPT_4O),
        ("openai/gpt-4o", _GPT_4O),
        ("some-router/openai/gpt-4o", _GPT_4O),
        ("openai.gpt-4o", _GPT_4O),
        ("gpt-5-mini", _GPT_5),
        ("us.anthropic.claude-sonnet-4-20250514-v1:0", _SONNET_4),
        ("bedrock/us.anthropic.claude-sonnet-4-20250514-v1:0", _SONNET_4),
        ("models/gemini-2.5-pro", Limits(context=1_048_576, output=65_535)),
    ],
)
def test_a_model_is_known_by_its_name_with_and_without_prefixes(model: str, limits: Limits) -> None:
    assert _TABLE.find(model) == limits


@pytest.mark.parametrize(
    "model", ["", "/", ".", "us.", "gpt-4o/", "my-own-model", "_source", "gpt-4o" * 100_000]
)
def test_an_unknown_model_has_no_limits(model: str) -> None:
    assert _TABLE.find(model) is None


@given(st.text())
def test_a_name_of_any_characters_does_not_raise(model: str) -> None:
    _TABLE.find(model)


def test_the_longest_name_that_is_in_the_table_wins() -> None:
    table = ModelTable({"x/m": Limits(context=1), "m": Limits(context=2), "anthropic.m": Limits(context=3)})
    assert table.find("y/x/m") == Limits(context=1)
    assert table.find("y/m") == Limits(context=2)
    assert table.find("eu.anthropic.m") == Limits(context=3)
    assert table.find("meta.m") == Limits(context=2)


def test_an_output_as_large_as_the_window_is_unknown() -> None:
    rows = parse_table(b'{"_source":{},"m":{"context":8191,"input":null,"output":8191}}')
    assert rows == {"m": Limits(context=8_191)}


def test_every_row_is_found_under_its_own_name_and_is_positive() -> None:
    data = json.loads(files("gateway").joinpath("data/model_limits.json").read_bytes())
    source = data.pop("_source")
    assert len(data) == source["models"]
    assert "MIT" in source["licence"] and "Berri AI" in source["copyright"]
    for name, row in data.items():
        limits = _TABLE.find(name)
        assert limits is not None, name
        assert (limits.context, limits.input) == (row["context"], row["input"]), name
        assert limits.output is None or 0 < limits.output < row["context"], name


def test_the_name_in_the_table_is_found_as_the_limits_are() -> None:
    assert _TABLE.find_name("some-router/openai/gpt-4o") == "gpt-4o"
    assert _TABLE.find_name("my-own-model") is None
    assert len(_TABLE.rows) == _TABLE.size
