"""Token usage as an upstream reports it, of any shape, with one meaning for all upstreams.

Does not know where in a response the numbers stand. docs/design.md (Usage) describes the shapes.
"""

from collections.abc import Mapping
from typing import Final

from gateway.core.counts import is_count
from gateway.core.sizing.usage import Usage

_DETAILS: Final = ("prompt_tokens_details", "input_tokens_details")
_READ: Final = ("cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens")
_CREATED: Final = "cache_creation_input_tokens"
_WRITTEN: Final = ("cache_write_tokens", "cache_creation_tokens")
_NAMES: Final = frozenset(
    {
        *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"),
        *(_CREATED, *_READ),
    }
)


def find_usage(value: Mapping[str, object]) -> Usage | None:
    """Usage from an object of any shape; None if it has no size of the prompt.

    Tokens read from a cache, and written to one, are named by Anthropic, DeepSeek, Moonshot, and in OpenAI's
    details, where OpenRouter and litellm say what was written. Some servers send two shapes, and zeros in the
    one that they do not fill, so the largest number counts.
    """
    given = {name: found for name, found in value.items() if found is not None and name in _NAMES}
    counts = {name: count for name, found in given.items() if (count := _find_count(found)) is not None}
    # litellm sends both shapes at once. prompt_tokens includes cached tokens, input_tokens may not.
    prompt = counts.get("prompt_tokens", 0)
    if "prompt_tokens" not in given and "input_tokens" in counts:
        cached = counts.get("cache_read_input_tokens", 0) + counts.get(_CREATED, 0)
        prompt = counts["input_tokens"] + cached
    if not prompt:
        return None
    output = counts.get("output_tokens" if "completion_tokens" not in given else "completion_tokens", 0)
    # xAI and Gemini count reasoning in total_tokens, but not in completion_tokens.
    output = max(output, counts.get("total_tokens", 0) - prompt)
    read = [counts[name] for name in _READ if name in counts]
    written = [counts[_CREATED]] if _CREATED in counts else []
    for name in _DETAILS:
        if isinstance(details := value.get(name), dict):
            read += _list_counts(details, _READ[-1:])
            written += _list_counts(details, _WRITTEN)
    return Usage(
        prompt,
        output,
        min(max(read), prompt) if read else None,
        min(max(written), prompt) if written else None,
    )


def find_timings(value: Mapping[str, object]) -> Usage | None:
    """From llama.cpp's `timings`: prompt_n tokens evaluated, cache_n reused, predicted_n generated."""
    evaluated = _find_count(value.get("prompt_n"))
    if evaluated is None:
        return None
    cached = _find_count(value.get("cache_n"))
    prompt = evaluated + (cached or 0)
    return Usage(prompt, _find_count(value.get("predicted_n")) or 0, cached) if prompt else None


def merge_usage(earlier: Mapping[str, object], later: Mapping[str, object]) -> dict[str, object]:
    """Anthropic's two halves, `message_start` and `message_delta`, as one usage object.

    The later numbers are cumulative and replace the earlier ones, unless they are null or zero: some proxies
    send zeros.
    """
    return {**earlier, **{name: count for name, count in later.items() if count or name not in earlier}}


def _list_counts(value: Mapping[str, object], names: tuple[str, ...]) -> list[int]:
    return [count for name in names if (count := _find_count(value.get(name))) is not None]


def _find_count(value: object) -> int | None:
    """A number of tokens. 0 and 12.0 are valid, a bool is not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if is_count(value) else None
