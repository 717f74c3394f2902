import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sizing.usage import (
    Usage,
    add_usage,
    find_timings,
    find_usage,
    merge_usage,
    subtract_usage,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}, Usage(10, 3)),
        ({"prompt_tokens": 10, "completion_tokens": 3}, Usage(10, 3)),
        ({"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 50}, Usage(10, 40)),
        ({"prompt_tokens": 10, "total_tokens": 10}, Usage(10, 0)),
        ({"prompt_tokens": 10}, Usage(10, 0)),
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 1}, Usage(10, 5)),
        ({"prompt_tokens": 10.0, "completion_tokens": 3.0}, Usage(10, 3)),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 8}}, Usage(10, 0, 8)),
        ({"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}, Usage(10, 3)),
        ({"input_tokens": 4, "cache_read_input_tokens": 90, "output_tokens": 3}, Usage(94, 3, 90)),
        (
            {"input_tokens": 4, "cache_creation_input_tokens": 6, "cache_read_input_tokens": None},
            Usage(10, 0, None, 6),
        ),
        ({"input_tokens": 0, "cache_read_input_tokens": 90}, Usage(90, 0, 90)),
        # DeepSeek, Moonshot, the Responses API, OpenRouter.
        ({"prompt_tokens": 10, "prompt_cache_hit_tokens": 7, "prompt_cache_miss_tokens": 3}, Usage(10, 0, 7)),
        ({"prompt_tokens": 10, "cached_tokens": 0}, Usage(10, 0, 0)),
        ({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 8}}, Usage(10, 0, 8)),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 5}},
            Usage(10, 0, 4, 5),
        ),
        # litellm; a server that fills one of two shapes.
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cache_creation_tokens": 5, "cached_tokens": 4}},
            Usage(10, 0, 4, 5),
        ),
        (
            {
                "prompt_tokens": 10,
                "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 5},
                "input_tokens_details": {"cached_tokens": 0},
            },
            Usage(10, 0, 4, 5),
        ),
        ({"prompt_tokens": 10, "cache_creation_input_tokens": 0}, Usage(10, 0, None, 0)),
        ({"prompt_tokens": 10, "prompt_tokens_details": None}, Usage(10, 0)),
        # More than there is.
        ({"prompt_tokens": 10, "cached_tokens": 10**9}, Usage(10, 0, 10)),
        ({"prompt_tokens": 10, "cached_tokens": 10**30}, Usage(10, 0)),
        ({"prompt_tokens": None, "input_tokens": 7}, Usage(7, 0)),
    ],
)
def test_every_shape_has_one_meaning(value: dict[str, object], expected: Usage) -> None:
    assert find_usage(value) == expected


def test_cached_tokens_are_not_added_twice_if_both_shapes_are_present() -> None:
    both = {"prompt_tokens": 100, "completion_tokens": 5, "input_tokens": 10, "cache_read_input_tokens": 90}
    assert find_usage(both) == Usage(100, 5, 90)


@pytest.mark.parametrize("prompt", [0, -1, None, "10", True, 1.5, float("nan"), float("inf"), [], {}])
def test_an_invalid_prompt_size_is_not_usage(prompt: object) -> None:
    assert find_usage({"prompt_tokens": prompt, "completion_tokens": 5}) is None
    assert find_usage({"input_tokens": prompt, "output_tokens": 5}) is None
    assert find_timings({"prompt_n": prompt, "predicted_n": 5}) is None


def test_an_empty_object_is_not_usage() -> None:
    assert find_usage({}) is None
    assert find_timings({}) is None


def test_timings_include_reused_tokens() -> None:
    assert find_timings({"prompt_n": 3, "cache_n": 90, "predicted_n": 7}) == Usage(93, 7, 90)


def test_later_usage_replaces_earlier_but_not_with_zeros_or_nulls() -> None:
    earlier = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1}
    later = {"input_tokens": 0, "cache_read_input_tokens": None, "output_tokens": 7}
    assert find_usage(merge_usage(earlier, later)) == Usage(15, 7, 5)


def test_the_total_is_the_sum() -> None:
    assert Usage(3, 4).total == 7


_NAMES = st.sampled_from(
    ["prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens", "prompt_n"]
)
_VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers()))


@given(st.dictionaries(_NAMES, _VALUES))
def test_any_value_gives_non_negative_usage_or_none(
    value: dict[str, object],
) -> None:
    for usage in (find_usage(value), find_timings(value)):
        assert usage is None or (usage.prompt_tokens > 0 and usage.output_tokens >= 0)


def test_usage_of_several_requests_is_added_kind_by_kind() -> None:
    assert add_usage(None, None) is None
    assert add_usage(Usage(1, 2), None) == add_usage(None, Usage(1, 2)) == Usage(1, 2)
    assert add_usage(Usage(1, 2, 3), Usage(10, 20, 30, 40)) == Usage(11, 22, 33, 40)
    assert subtract_usage(Usage(11, 22, 33, 40), Usage(1, 2, 3)) == Usage(10, 20, 30, 40)
    assert subtract_usage(Usage(1, 2), Usage(3, 4, 5)) == Usage(0, 0, 0, 0)
