"""How many tokens an answer says it took, in one meaning for every upstream.

Knows nothing of where in an answer the numbers stand, nor of JSON. The shapes are in FACTS §4.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Usage(NamedTuple):
    """Tokens; cached ones count once, reasoning counts as output."""

    prompt_tokens: int
    output_tokens: int

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.output_tokens


def find_usage(value: Mapping[str, object]) -> Usage | None:
    """One usage object of any shape; None where it does not say how long the prompt was."""
    prompt = _read_prompt(value)
    if not prompt:
        return None
    output = _read_first(value, "completion_tokens", "output_tokens") or 0
    # xAI and Gemini leave the reasoning out of completion_tokens, but not out of the total.
    beyond_prompt = (_read_count(value.get("total_tokens")) or 0) - prompt
    return Usage(prompt, max(output, beyond_prompt))


def find_timings(value: Mapping[str, object]) -> Usage | None:
    """llama.cpp's `timings`: prompt_n were evaluated, cache_n reused, predicted_n written."""
    evaluated = _read_count(value.get("prompt_n"))
    if evaluated is None:
        return None
    prompt = evaluated + (_read_count(value.get("cache_n")) or 0)
    if not prompt:
        return None
    return Usage(prompt, _read_count(value.get("predicted_n")) or 0)


def merge_usage(earlier: Mapping[str, object], later: Mapping[str, object]) -> dict[str, object]:
    """Anthropic's two halves, `message_start` and `message_delta`, as one usage object.

    The later one is cumulative and wins, except where it is null or zero: some proxies fill in zeros.
    """
    return {**earlier, **{name: count for name, count in later.items() if count or name not in earlier}}


def _read_prompt(value: Mapping[str, object]) -> int | None:
    # litellm sends both shapes at once. prompt_tokens holds the cached ones already, input_tokens may not.
    if value.get("prompt_tokens") is not None:
        return _read_count(value["prompt_tokens"])
    fresh = _read_count(value.get("input_tokens"))
    if fresh is None:
        return None
    cache_read = _read_count(value.get("cache_read_input_tokens")) or 0
    cache_written = _read_count(value.get("cache_creation_input_tokens")) or 0
    return fresh + cache_read + cache_written


def _read_first(value: Mapping[str, object], *names: str) -> int | None:
    present = (value[name] for name in names if value.get(name) is not None)
    return _read_count(next(present, None))


def _read_count(value: object) -> int | None:
    """A number of tokens, 0 included. A bool is not one; 12.0 is."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value
