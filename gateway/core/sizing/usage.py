"""Token usage as an upstream reports it, with one meaning for all upstreams.

Does not know where in a response the numbers stand. docs/design.md (Usage) describes the shapes.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from gateway.core.counts import is_count

_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details")
_CACHED: Final = ("prompt_cache_hit_tokens", "cached_tokens")
_WRITTEN: Final = ("cache_write_tokens", "cache_creation_tokens")


class Usage(NamedTuple):
    """Tokens. Cached tokens count once; reasoning counts as output."""

    prompt_tokens: int
    output_tokens: int
    # Parts of the prompt: read from a cache, and written to one. None if the upstream does not say.
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.output_tokens


def add_usage(left: Usage | None, right: Usage | None) -> Usage | None:
    """Of two requests. None, also for one kind of tokens, if neither reported any."""
    if left is None or right is None:
        return right if left is None else left
    return Usage(
        left.prompt_tokens + right.prompt_tokens,
        left.output_tokens + right.output_tokens,
        _add_counts(left.cached_tokens, right.cached_tokens),
        _add_counts(left.cache_write_tokens, right.cache_write_tokens),
    )


def subtract_usage(whole: Usage, part: Usage) -> Usage:
    """The rest of several requests."""
    return Usage(
        max(0, whole.prompt_tokens - part.prompt_tokens),
        max(0, whole.output_tokens - part.output_tokens),
        max(0, (whole.cached_tokens or 0) - (part.cached_tokens or 0)),
        max(0, (whole.cache_write_tokens or 0) - (part.cache_write_tokens or 0)),
    )


def _add_counts(left: int | None, right: int | None) -> int | None:
    return None if left is None and right is None else (left or 0) + (right or 0)


def find_usage(value: Mapping[str, object]) -> Usage | None:
    """Usage from an object of any shape; None if it has no size of the prompt."""
    prompt = _find_prompt(value)
    if not prompt:
        return None
    completion = value.get("completion_tokens")
    output = _find_count(value.get("output_tokens") if completion is None else completion) or 0
    # xAI and Gemini count reasoning in total_tokens, but not in completion_tokens.
    beyond_prompt = (_find_count(value.get("total_tokens")) or 0) - prompt
    cached, written = (_limit(count, prompt) for count in _find_cached(value))
    return Usage(prompt, max(output, beyond_prompt), cached, written)


def find_timings(value: Mapping[str, object]) -> Usage | None:
    """From llama.cpp's `timings`: prompt_n tokens evaluated, cache_n reused, predicted_n generated."""
    evaluated = _find_count(value.get("prompt_n"))
    if evaluated is None:
        return None
    cached = _find_count(value.get("cache_n"))
    prompt = evaluated + (cached or 0)
    if not prompt:
        return None
    return Usage(prompt, _find_count(value.get("predicted_n")) or 0, cached)


def merge_usage(earlier: Mapping[str, object], later: Mapping[str, object]) -> dict[str, object]:
    """Anthropic's two halves, `message_start` and `message_delta`, as one usage object.

    The later numbers are cumulative and replace the earlier ones, unless they are null or zero: some proxies
    send zeros.
    """
    return {**earlier, **{name: count for name, count in later.items() if count or name not in earlier}}


def _find_prompt(value: Mapping[str, object]) -> int | None:
    # litellm sends both shapes at once. prompt_tokens includes cached tokens, input_tokens may not.
    if value.get("prompt_tokens") is not None:
        return _find_count(value["prompt_tokens"])
    fresh = _find_count(value.get("input_tokens"))
    if fresh is None:
        return None
    cache_read = _find_count(value.get("cache_read_input_tokens")) or 0
    cache_written = _find_count(value.get("cache_creation_input_tokens")) or 0
    return fresh + cache_read + cache_written


def _find_cached(value: Mapping[str, object]) -> tuple[int | None, int | None]:
    """Tokens read from a cache, and written to one: of Anthropic, of DeepSeek, of Moonshot, and in OpenAI's
    details, where OpenRouter and litellm say what was written.

    Some servers send two shapes, and zeros in the one that they do not fill, so the largest number counts.
    """
    details = [found for name in _DETAILS if isinstance(found := value.get(name), dict)]
    cached = [value.get("cache_read_input_tokens"), *map(value.get, _CACHED)]
    cached += [found.get("cached_tokens") for found in details]
    written = [value.get("cache_creation_input_tokens")]
    written += [found.get(name) for found in details for name in _WRITTEN]
    return _find_largest(cached), _find_largest(written)


def _find_largest(values: Sequence[object]) -> int | None:
    return max((count for value in values if (count := _find_count(value)) is not None), default=None)


def _limit(count: int | None, most: int) -> int | None:
    return None if count is None else min(count, most)


def _find_count(value: object) -> int | None:
    """A number of tokens. 0 and 12.0 are valid, a bool is not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if is_count(value) else None
