"""What a tenant wants done about a full window: every number the decisions use.

A preset is a set of these values; see `config/presets`. Ratios are fractions of the line that the
field's comment names, tokens are true tokens of the upstream.
"""

from dataclasses import dataclass, field
from typing import Literal

# How the tokens of a text are counted: by a tokenizer, or four characters each: rounded as in documents 000
# and 001, or up as in 004.
Estimator = Literal["tiktoken", "chars", "chars-up"]
Formula = Literal["adaptive", "source", "ratio"]
Protects = Literal["results", "everything"]
# Who writes what stands for the old turns: a model, the digest, or nobody: then they are left out.
Method = Literal["model", "digest", "drop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trigger:
    """When is it full? `source`: document 000 §3.1; `ratio`: 002 and 003; `adaptive`: DECISIONS, lines.

    Not every formula uses every number.
    """

    formula: Formula = "adaptive"
    # Product-level cap on the reply that is reserved (document 000 §3.1).
    output_cap: int = 32_000
    # Kept free below an input limit by `source`; None: as much as the reply, reserve_maximum at most.
    input_reserve: int | None = 0
    # Is it full at the line already, or only above it? Later versions of opencode compare with >=.
    at_line: bool = False
    # reserve = min(max(requested or model output, reserve_minimum), reserve_maximum, reserve_ratio x window)
    reserve_minimum: int = 8_000
    reserve_maximum: int = 20_000
    reserve_ratio: float = 0.25
    # hard = min(hard_ratio x window, window - reserve, window - client_margin from client_margin_from up)
    # `ratio`: hard = hard_ratio x window - reserve, and soft = soft_ratio x window - reserve
    hard_ratio: float = 0.75
    soft_ratio: float = 0.75
    client_margin: int = 36_000
    client_margin_from: int = 100_000
    # soft = hard - min(max(growth_turns x growth per turn, soft_minimum x window), soft_maximum x window)
    growth_turns: float = 2.0
    soft_minimum: float = 0.05
    soft_maximum: float = 0.25
    # A prepared summary comes into force above the hard line; early: above the soft line already.
    early: bool = False
    # target after a compaction = floor + target_ratio x (hard - floor)
    target_ratio: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """What stays verbatim behind a pivot."""

    # tail = min(tail_tokens, tail_ratio x hard), and at least the open group.
    tail_tokens: int = 20_000
    tail_ratio: float = 0.15
    # Where set: tail = tail_window x window instead (document 003 §4.3).
    tail_window: float = 0.0
    # At least so many messages, in whole groups, as far as the window has room for them.
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
    # What fills the protected part: tool results alone, or every message (document 004).
    protects: Protects = "results"
    # overshoot: the message that fills it is protected, too.
    overshoot: bool = False
    # Most that one message counts for (document 004: 50,000).
    part_tokens: int | None = None
    # calibrated: by what upstream counts; otherwise by the estimator alone, as the documents do.
    calibrated: bool = True
    protected_tools: tuple[str, ...] = ("skill",)
    protected_prefixes: tuple[str, ...] = ()
    keep_turns: int = 0
    keep_messages: int = 0
    placeholder: str = "[Old tool result content cleared]"
    # Results of more than over_chars are cut to keep_chars; None: cleared (document 003 §9: 1,000 to 200).
    over_chars: int = 0
    keep_chars: int | None = None
    # eager: whenever a batch is worth it. Otherwise only from the soft line on, and only if it suffices.
    eager: bool = False
    # partial: also where it does not suffice.
    partial: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """How the old turns are summarised."""

    method: Method = "model"
    model: str | None = None
    # Where `model` is None: patterns of the conversation's model, and who summarises for it; the first that
    # fits. None: the conversation's own (document 003 §5).
    model_map: tuple[tuple[str, str | None], ...] = ()
    upstream: str | None = None
    # cap = min(max_tokens, max_ratio x window)
    max_tokens: int = 4_096
    max_ratio: float = 0.1
    # Longer messages are cut for the summariser (document 003 §5: 2,000).
    message_chars: int | None = None
    instructions: str = ""
    # Lines that stand before the instruction, such as the current branch (document 000 §6.2).
    extra_context: tuple[str, ...] = ()
    timeout_seconds: float = 120.0
    # What one request may wait for: a history of many windows is folded in chunks, then the digest steps in.
    max_calls: int = 8
    deadline_seconds: float = 300.0
    # Where no summary is to be had, a digest steps in at the hard line, not only where no window holds the
    # array (document 003 §10).
    digest_at_line: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """The words of a compaction. Source: document 000 §6.1 (system), §6.2 (instruction), §6.3, §4.3.

    system, instruction: for the summariser. question: what a summary without an opening answers. resume: what
    the user says after a summary, so that the model goes on. dropped: stands for turns that are left out.
    """

    system: str = ""
    instruction: str = ""
    question: str = ""
    resume: str = ""
    dropped: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Originals:
    """What was summarised or pruned, kept as it was for operators to read (document 000 §5.2)."""

    keep: bool = True
    # None: as long as state is kept.
    days: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    name: str = "adaptive"
    auto: bool = True
    prune: bool = True
    # May its users give commands to the gateway in the conversation itself (document 003 §3: /compact)?
    commands: bool = False
    estimator: Estimator = "tiktoken"
    trigger: Trigger = field(default_factory=Trigger)
    keep: Keep = field(default_factory=Keep)
    pruning: Pruning = field(default_factory=Pruning)
    summary: Summary = field(default_factory=Summary)
    prompts: Prompts = field(default_factory=Prompts)
    originals: Originals = field(default_factory=Originals)
