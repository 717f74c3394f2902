"""How much fits: the limits of one model at one upstream, and which source of them is believed.

Knows nothing of where a source comes from; `context`, `input` and `output` are three different things.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

# No chat model is offered with less; more is a mistake, or a way to write "unlimited".
_SMALLEST_TOKENS: Final = 256
_LARGEST_TOKENS: Final = 100_000_000
# Document 003 §8.
_LONG_WINDOW_TOKENS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Tokens. `None` is unset; without `context` and `input` the window counts as unlimited.

    context: the whole window, prompt and reply together.
    input: a separate cap on the prompt, where the model has one.
    output: the largest reply.
    body_bytes, images: the largest request body, and the most pictures in one, that the upstream takes.
    """

    context: int | None = None
    input: int | None = None
    output: int | None = None
    body_bytes: int | None = None
    images: int | None = None

    def with_defaults(self, other: "Limits") -> "Limits":
        """Field by field: ours where it is set, else the other's. 0 counts as unset (source 000 §3)."""
        return Limits(
            context=self.context or other.context or None,
            input=self.input or other.input or None,
            output=self.output or other.output or None,
            body_bytes=self.body_bytes or other.body_bytes or None,
            images=self.images or other.images or None,
        )

    def with_caps(self, other: "Limits") -> "Limits":
        """Field by field the smaller one; where one of them is unset, the other."""
        return Limits(
            context=_smaller(self.context, other.context),
            input=_smaller(self.input, other.input),
            output=_smaller(self.output, other.output),
            body_bytes=_smaller(self.body_bytes, other.body_bytes),
            images=_smaller(self.images, other.images),
        )


def _smaller(ours: int | None, other: int | None) -> int | None:
    return min(ours, other) if ours and other else ours or other or None


def is_plausible(tokens: int) -> bool:
    """Could that be a limit at all?"""
    return _SMALLEST_TOKENS <= tokens <= _LARGEST_TOKENS


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """What each source says of one model; empty where it says nothing.

    listed: the upstream's own model list. proven: the numbers in its overflow errors. suspected: a window
    that something did not fit, measured by ourselves. has_long_window: asked for by a beta flag.
    """

    configured: Limits = Limits()
    listed: Limits = Limits()
    proven: Limits = Limits()
    suspected: Limits = Limits()
    table: Limits = Limits()
    has_long_window: bool = False


def choose_limits(sources: Sources) -> Limits:
    """Field by field, the best source first: configured, listed, proven, the table.

    What was proven smaller than listed holds: a list may speak of the model where the endpoint that was
    chosen for it has less. What was only suspected lowers, and never raises. Nothing of it touches what is
    configured.
    """
    if sources.has_long_window:
        # Both sources speak of the model without the flag; a proof was made with it.
        known = _with_long_window(sources.listed.with_defaults(sources.table)).with_caps(sources.proven)
    else:
        known = sources.listed.with_caps(sources.proven).with_defaults(sources.table)
    return sources.configured.with_defaults(known.with_caps(sources.suspected))


def _with_long_window(limits: Limits) -> Limits:
    return replace(limits, context=max(_LONG_WINDOW_TOKENS, limits.context or 0), input=None)


# JOINED: Did the caller ask for the long window? By the beta flag of document 003 §8, on a Sonnet model.

_HEADER: Final = b"anthropic-beta"
_LONG_WINDOW: Final = b"context-1m-2025-08-07"
_MODEL: Final = "sonnet"
# claude-3-5-sonnet, claude-3.7-sonnet, sonnet-3.5: 200K, whatever a header says.
_THIRD_GENERATION: Final = ("claude-3", "claude3", "sonnet-3")


def has_long_window(model: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """`headers`: names and values as they came. Of other models the headers are not even looked at."""
    if _MODEL not in model or any(name in model for name in _THIRD_GENERATION):
        return False
    return any(
        _LONG_WINDOW in [flag.strip() for flag in value.split(b",")]
        for name, value in headers
        if len(name) == len(_HEADER) and name.lower() == _HEADER
    )
