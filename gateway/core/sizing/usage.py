"""Token usage, with one meaning for all upstreams. `wire.usage` reads what they report."""

from typing import NamedTuple


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
