"""What a tenant wants done about a full window: every number the decisions use.

A preset is a set of these values; see `config/presets`. Ratios are fractions of the line that the
field's comment names, tokens are true tokens of the upstream.
"""

from dataclasses import dataclass, field
from typing import Literal

# How the tokens of a text are counted: by a tokenizer, or as documents 000 and 001 do, four characters each.
Estimator = Literal["tiktoken", "chars"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trigger:
    """When is it full? Source for `source`: document 000 §3.1; for `adaptive`: DECISIONS, lines."""

    formula: Literal["adaptive", "source"] = "adaptive"
    # Product-level cap on the reply that is reserved (document 000 §3.1).
    output_cap: int = 32_000
    # reserve = min(max(requested or model output, reserve_minimum), reserve_maximum, reserve_ratio x window)
    reserve_minimum: int = 8_000
    reserve_maximum: int = 20_000
    reserve_ratio: float = 0.25
    # hard = min(hard_ratio x window, window - reserve, window - client_margin from client_margin_from up)
    hard_ratio: float = 0.75
    client_margin: int = 36_000
    client_margin_from: int = 100_000
    # soft = hard - min(max(growth_turns x growth per turn, soft_minimum x window), soft_maximum x window)
    growth_turns: float = 2.0
    soft_minimum: float = 0.05
    soft_maximum: float = 0.25
    # target after a compaction = floor + target_ratio x (hard - floor)
    target_ratio: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """What stays verbatim behind a pivot."""

    # tail = min(tail_tokens, tail_ratio x hard), and at least the open group.
    tail_tokens: int = 20_000
    tail_ratio: float = 0.15
    tail_messages: int = 0
    # The messages before the first reply: kept as bytes, cut visibly beyond opening_ratio x window.
    opening: bool = True
    opening_ratio: float = 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruning:
    """Which old tool results become placeholders (document 000 §5)."""

    # protect = min(protect_tokens, protect_ratio x hard), likewise the minimum worth a batch.
    protect_tokens: int = 40_000
    protect_ratio: float = 0.3
    minimum_tokens: int = 20_000
    minimum_ratio: float = 0.1
    protected_tools: tuple[str, ...] = ("skill",)
    keep_turns: int = 0
    placeholder: str = "[Old tool result content cleared]"
    # eager: whenever a batch is worth it. Otherwise only from the soft line on, and only if it suffices.
    eager: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """How the old turns are summarised."""

    model: str | None = None
    upstream: str | None = None
    # cap = min(max_tokens, max_ratio x window)
    max_tokens: int = 4_096
    max_ratio: float = 0.1
    instructions: str = ""
    timeout_seconds: float = 120.0
    # What one request may wait for: a history of many windows is folded in chunks, then the digest steps in.
    max_calls: int = 8
    deadline_seconds: float = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    name: str = "adaptive"
    auto: bool = True
    prune: bool = True
    estimator: Estimator = "tiktoken"
    trigger: Trigger = field(default_factory=Trigger)
    keep: Keep = field(default_factory=Keep)
    pruning: Pruning = field(default_factory=Pruning)
    summary: Summary = field(default_factory=Summary)
