"""How many tokens fit: the limits of one model at one upstream, and which source of them takes precedence.

Does not know where the numbers come from. `context`, `input` and `output` are three different limits.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

# No chat model has a smaller window; a larger number is a mistake, or means "unlimited".
_SMALLEST_TOKENS: Final = 256
_LARGEST_TOKENS: Final = 100_000_000
# A beta flag selects a window of this size on Sonnet models (003, docs/sources.md).
_LONG_WINDOW_TOKENS: Final = 1_000_000
BETA_HEADER: Final = "anthropic-beta"
_LONG_WINDOW_FLAG: Final = b"context-1m-2025-08-07"
_LONG_WINDOW_FAMILY: Final = "sonnet"
# claude-3-5-sonnet, claude-3.7-sonnet and sonnet-3.5 have 200K, whatever a header says.
_THIRD_GENERATION: Final = ("claude-3", "claude3", "sonnet-3")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Tokens. None is unset; without `context` and `input` the window counts as unlimited."""

    # The whole window: prompt and reply together.
    context: int | None = None
    # A separate limit on the prompt, if the model has one.
    input: int | None = None
    # The longest reply.
    output: int | None = None
    # The largest request body that the upstream accepts.
    body_bytes: int | None = None
    # The most images that the upstream accepts in one request.
    images: int | None = None

    def with_defaults(self, other: "Limits") -> "Limits":
        """For each field our value, or else the other's. 0 counts as unset (000, docs/sources.md)."""
        return Limits(
            context=self.context or other.context or None,
            input=self.input or other.input or None,
            output=self.output or other.output or None,
            body_bytes=self.body_bytes or other.body_bytes or None,
            images=self.images or other.images or None,
        )

    def with_caps(self, other: "Limits") -> "Limits":
        """For each field the smaller value, or the only one that is set."""
        return Limits(
            context=_choose_smaller(self.context, other.context),
            input=_choose_smaller(self.input, other.input),
            output=_choose_smaller(self.output, other.output),
            body_bytes=_choose_smaller(self.body_bytes, other.body_bytes),
            images=_choose_smaller(self.images, other.images),
        )


def _choose_smaller(ours: int | None, other: int | None) -> int | None:
    return min(ours, other) if ours and other else ours or other or None


def is_plausible(tokens: int) -> bool:
    """Whether a number could be the limit of a model."""
    return _SMALLEST_TOKENS <= tokens <= _LARGEST_TOKENS


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """What each source says about one model; empty if it says nothing."""

    configured: Limits = Limits()
    # From the upstream's own model list.
    listed: Limits = Limits()
    # The numbers in the upstream's overflow errors.
    proven: Limits = Limits()
    # The size of a request that did not fit, by our own estimate.
    suspected: Limits = Limits()
    # From the bundled table of models.
    table: Limits = Limits()
    # Whether the request selects the long window by a beta flag.
    has_long_window: bool = False


def choose_limits(sources: Sources) -> Limits:
    """For each field the first source that has it: configured, listed, proven, table.

    A proven limit below the listed one takes precedence, because the list may describe the model while the
    chosen endpoint has a smaller window. A suspected limit can only lower the result. Configured limits are
    never changed.
    """
    if sources.has_long_window:
        # List and table describe the model without the flag; errors were made with it.
        known = _with_long_window(sources.listed.with_defaults(sources.table)).with_caps(sources.proven)
    else:
        known = sources.listed.with_caps(sources.proven).with_defaults(sources.table)
    return sources.configured.with_defaults(known.with_caps(sources.suspected))


def name_window_source(sources: Sources) -> str:
    """Where the window comes from, in a word for operators; `unknown` if there is none."""
    chosen = choose_limits(sources)
    window = chosen.context or chosen.input
    if not window:
        return "unknown"
    named = (
        ("configured", sources.configured),
        ("upstream", sources.listed),
        ("learned", sources.proven),
        ("guessed", sources.suspected),
        ("table", sources.table),
    )
    found = (name for name, limits in named if window in (limits.context, limits.input))
    return next(found, "beta header")


def _with_long_window(limits: Limits) -> Limits:
    return replace(limits, context=max(_LONG_WINDOW_TOKENS, limits.context or 0), input=None)


def has_long_window(model: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the request selects the long window. `headers`: names and values as received.

    Only a Sonnet model has one, so the headers of other models are not read.
    """
    if _LONG_WINDOW_FAMILY not in model or any(name in model for name in _THIRD_GENERATION):
        return False
    return any(
        _LONG_WINDOW_FLAG in [flag.strip() for flag in value.split(b",")]
        for name, value in headers
        if name.lower() == BETA_HEADER.encode()
    )
