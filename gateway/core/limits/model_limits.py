"""How many tokens fit: the limits of one model at one upstream, which source of them takes precedence, what
errors have taught, and by which names a table may have a model.

Does not know where the numbers come from, and knows no clock and no error texts: the caller passes times and
numbers. `context`, `input` and `output` are three different limits.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gateway.core.counts import LARGEST_COUNT

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
# After a week, as long as state is kept by default, an upstream may serve the model with a larger window.
_PROOF_SECONDS: Final = 7 * 86_400.0
# A guess lasts one day only: our estimate may be wrong, or the error may have meant something else.
_GUESS_SECONDS: Final = 86_400.0
# A repeated proof is renewed once a day, not with each of several errors in a row.
_RENEW_SECONDS: Final = 86_400.0
# The refused size did not fit; a tenth less may. If the estimate is further off, each error takes another
# tenth.
_SHARE_OF_REFUSED: Final = 0.9
# An error without a number, for a request smaller than this, was not about the window.
_SMALLEST_GUESS_TOKENS: Final = 4_096
# Routers and the models behind them count tokens differently; a prompt this far above a window disproves it.
_DISPROVED: Final = 1.5
# Part of the lookup rule of the bundled tables (`_source`): Bedrock writes region and vendor before a
# model's name.
_REGION = re.compile(r"(?:us-gov|us|eu|apac|jp|au|ca|sa|global)\.(?=.)")
# At least three letters, because `in.` is a region that the rule does not list.
_VENDOR = re.compile(r"[a-z][a-z0-9]{2,}\.(?=.)")
# Clients choose the name. No model has a longer one.
LONGEST_NAME_CHARS = 256


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
        return Limits(**{field: getattr(self, field) or getattr(other, field) or None for field in _FIELDS})

    def with_caps(self, other: "Limits") -> "Limits":
        """For each field the smaller value, or the only one that is set."""
        pairs = {field: (getattr(self, field), getattr(other, field)) for field in _FIELDS}
        return Limits(**{field: min(filter(None, pair), default=None) for field, pair in pairs.items()})


_TOKEN_FIELDS: Final = ("context", "input", "output")
_FIELDS: Final = (*_TOKEN_FIELDS, "body_bytes", "images")
_NOTHING: Final = Limits()


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
        listed = sources.listed.with_defaults(sources.table)
        window = max(_LONG_WINDOW_TOKENS, listed.context or 0)
        known = replace(listed, context=window, input=None).with_caps(sources.proven)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """What overflow errors have shown about one model at one upstream for one tenant, and for how long.

    A record; times are those of the wall clock. An upstream's error may quote the caller, so the errors of
    one tenant are not used for another.
    """

    owner: str
    # The smallest numbers that errors gave.
    proven: Limits = _NOTHING
    created_seconds: float = 0.0
    # Tokens of a window that a request did not fit, by our own estimate; None if a number is known.
    suspected: int | None = None
    suspected_seconds: float = 0.0

    def proven_at(self, now_seconds: float) -> Limits:
        return self.proven if _is_young(self.created_seconds, now_seconds, _PROOF_SECONDS) else _NOTHING

    def suspected_at(self, now_seconds: float) -> Limits:
        is_young = _is_young(self.suspected_seconds, now_seconds, _GUESS_SECONDS)
        return Limits(context=self.suspected) if is_young else _NOTHING

    def with_proof(self, limits: Limits, now_seconds: float) -> "Learned":
        """The smaller of the known limits and those of an error; `self` if nothing changes."""
        stated = _plausible(limits)
        kept = self.proven_at(now_seconds)
        smallest = kept.with_caps(stated)
        is_repeated = stated == kept and now_seconds - self.created_seconds >= _RENEW_SECONDS
        if stated == _NOTHING or (smallest == kept and not is_repeated):
            return self
        after = replace(self, proven=smallest, created_seconds=now_seconds)
        return replace(after, suspected=None) if _has_window(stated) else after

    def with_success(self, prompt_tokens: int) -> "Learned":
        """After a successful request with a prompt of this size; a window far below it is forgotten."""
        window = min(filter(None, (self.proven.context, self.proven.input)), default=prompt_tokens)
        if prompt_tokens <= _DISPROVED * window:
            return self
        return replace(self, proven=replace(self.proven, context=None, input=None))

    def with_refusal(self, refused_tokens: int, now_seconds: float) -> "Learned":
        """After an error without numbers for a prompt and reply of `refused_tokens` by our estimate."""
        tokens = int(refused_tokens * _SHARE_OF_REFUSED)
        before = self.suspected_at(now_seconds).context
        is_lower = _SMALLEST_GUESS_TOKENS <= tokens < (before or tokens + 1)
        if not is_lower or not is_plausible(tokens) or _has_window(self.proven_at(now_seconds)):
            return self
        return replace(self, suspected=tokens, suspected_seconds=now_seconds)


def _is_young(then_seconds: float, now_seconds: float, keep_seconds: float) -> bool:
    """Compares the distance in both directions, so that setting back the clock keeps nothing for ever."""
    return abs(now_seconds - then_seconds) < keep_seconds


def _has_window(limits: Limits) -> bool:
    return bool(limits.context or limits.input)


def _plausible(limits: Limits) -> Limits:
    """Only the numbers that could be limits."""
    known = {field: getattr(limits, field) or 0 for field in _FIELDS}
    for field, number in known.items():
        if not (is_plausible(number) if field in _TOKEN_FIELDS else 0 < number <= LARGEST_COUNT):
            known[field] = None
    return Limits(**known)


def make_names(model: str) -> Iterator[str]:
    """The names to look for, best first: as given, after each '/', without a region, without a vendor."""
    parts = model.split("/")
    names = ["/".join(parts[start:]) for start in range(len(parts))]
    yield from names
    regional = [name[region.end() :] for name in names if (region := _REGION.match(name))]
    yield from regional
    yield from (name[vendor.end() :] for name in names + regional if (vendor := _VENDOR.match(name)))
