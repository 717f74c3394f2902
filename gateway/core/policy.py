"""What a tenant wants done when the window fills up: every setting that the decisions use, declared once.

Each field holds its type, its range, its default and the line that `config/reference.yaml` shows for it;
`gateway.settings.policy_schema` builds the file's sections from these declarations. A preset is one set of
values (`config/presets`). Tokens are the upstream's own; a ratio is a part of what the field's text names.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a number may have. minimum and maximum are included, `above` is not."""

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """The text has at least one character."""


@dataclass(frozen=True, slots=True)
class NotBlank:
    """The text holds more than white space: upstreams refuse empty messages."""


@dataclass(frozen=True, slots=True)
class Doc:
    """One line for the operator who writes the settings file."""

    text: str


Ratio = Annotated[float, Range(minimum=0, maximum=1)]
PositiveRatio = Annotated[float, Range(above=0, maximum=1)]
Count = Annotated[int, Range(minimum=0)]
PositiveCount = Annotated[int, Range(above=0)]
Seconds = Annotated[float, Range(above=0)]
Name = Annotated[str, NotEmpty()]
Prompt = Annotated[str, NotBlank()]

# How the tokens of a text are counted before an upstream has reported usage: by a tokenizer, or as four
# characters each, rounded to the nearest (000 and 001 in docs/sources.md) or up (004).
Estimator = Literal["tiktoken", "chars", "chars-up"]
Formula = Literal["adaptive", "source", "ratio"]
Protects = Literal["results", "everything"]
# Whether a summary is asked for at the end of the conversation's own request, where the prompt cache has it.
RideMode = Literal["auto", "never"]
# Whether the gateway brings back what was summarized. `tool` is an earlier name, and no policy has it.
RecallMode = Literal["off", "tool", "auto"]
ShowTexts = bool | Literal["auto"]
# How old turns are replaced: by a model's summary, by a digest of quotes, or dropped.
Method = Literal["model", "digest", "drop"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trigger:
    """When the window counts as full. Not every formula uses every number.

    `source` is the formula of 000, `ratio` that of 002 and 003 (docs/sources.md), `adaptive` is ours
    (docs/design.md, When it is full). With them:

    reserve = min(max(requested or model output, reserve_minimum), reserve_maximum, reserve_ratio x window)
    adaptive: hard = min(hard_ratio x window, window - reserve, window - client_margin)
              soft = hard - min(max(growth_turns x growth, soft_minimum x window), soft_maximum x window)
    ratio:    hard = hard_ratio x window - reserve, soft = soft_ratio x window - reserve
    target = floor + target_ratio x (hard - floor), the size to aim for after a compaction

    adaptive: room = hard - floor - fewest_turns x average turn; summary <= room / 2, and the rest of the room
              limits the tail and hard - soft; target <= floor + room
    """

    formula: Annotated[
        Formula, Doc("adaptive; source: input or context - output; ratio: ratio x window - reserve.")
    ] = "adaptive"
    output_cap: Annotated[PositiveCount, Doc("source: most tokens reserved for the reply.")] = 32_000
    input_reserve: Annotated[
        Count | None,
        Doc("source: tokens kept free below an input limit; null: the reply, up to reserve_maximum."),
    ] = 0
    # Later versions of opencode compare with >=.
    at_line: Annotated[
        bool, Doc("source, ratio: true: full at the threshold; false: full only above it.")
    ] = False
    reserve_minimum: Annotated[
        Count, Doc("Fewest tokens reserved for the reply, unless reserve_ratio allows less.")
    ] = 8_000
    reserve_maximum: Annotated[PositiveCount, Doc("Most tokens reserved for the reply.")] = 20_000
    reserve_ratio: Annotated[Ratio, Doc("Largest part of the window reserved for the reply.")] = 0.25
    hard_ratio: Annotated[PositiveRatio, Doc("Highest hard threshold, as a part of the window.")] = 0.75
    soft_ratio: Annotated[PositiveRatio, Doc("ratio: like hard_ratio, for the soft threshold.")] = 0.75
    client_margin: Annotated[
        Count, Doc("Tokens to stay below the window, so that clients do not compact on their own.")
    ] = 36_000
    client_margin_from: Annotated[
        Count, Doc("Smallest window, in tokens, to which client_margin fully applies.")
    ] = 100_000
    growth_turns: Annotated[
        float,
        Range(minimum=0),
        Doc("The soft threshold lies this many turns of recent growth below the hard one."),
    ] = 2.0
    soft_minimum: Annotated[
        Ratio, Doc("Smallest distance of the two thresholds, as a part of the window.")
    ] = 0.05
    soft_maximum: Annotated[
        Ratio, Doc("Largest distance of the two thresholds, as a part of the window.")
    ] = 0.25
    early: Annotated[
        bool,
        Doc("Use a prepared summary above the soft threshold; false: only above the hard one."),
    ] = False
    target_ratio: Annotated[
        Ratio, Doc("Size after a compaction, from the fixed parts (0) to the hard threshold (1).")
    ] = 0.5
    fewest_turns: Annotated[
        Count,
        Doc("adaptive: average turns to fit between two compactions, if the window allows; 0: any number."),
    ] = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Keep:
    """Which messages stay verbatim after a pivot.

    tail = min(tail_tokens, tail_ratio x hard), or tail_window x window if that is set (003,
    docs/sources.md); the open group always stays.
    """

    tail_tokens: Annotated[
        Count, Doc("Tokens of recent messages kept verbatim; the open group is always kept.")
    ] = 20_000
    tail_ratio: Annotated[Ratio, Doc("Largest tail, as a part of the hard threshold.")] = 0.15
    tail_window: Annotated[
        Ratio, Doc("The tail as a part of the window; 0: tail_tokens and tail_ratio apply.")
    ] = 0.0
    # Whole groups, as far as the window has room for them.
    tail_messages: Annotated[
        Count, Doc("Recent messages kept verbatim if there is room for them; 0: by tokens only.")
    ] = 0
    opening: Annotated[
        bool,
        Doc("Keep the messages before the first reply; false: the summary replaces them, too."),
    ] = True
    opening_ratio: Annotated[
        Ratio, Doc("Room for an opening that the upstream has refused whole, as a part of the window.")
    ] = 0.15


@dataclass(frozen=True, kw_only=True, slots=True)
class Pruning:
    """Which old tool results become placeholders (docs/sources.md: 000, 003 and 004)."""

    protect_tokens: Annotated[Count, Doc("Newest tokens of tool results that are never pruned.")] = 40_000
    protect_ratio: Annotated[
        Ratio, Doc("Upper limit of protect_tokens, as a part of the hard threshold; 1: no such limit.")
    ] = 0.3
    minimum_tokens: Annotated[Count, Doc("Fewest tokens that a pruning must save.")] = 20_000
    minimum_ratio: Annotated[
        Ratio,
        Doc("Upper limit of minimum_tokens, as a part of the hard threshold; 1: no such limit."),
    ] = 0.1
    protects: Annotated[Protects, Doc("What protect_tokens counts: results or everything.")] = "results"
    overshoot: Annotated[bool, Doc("Also protect the message that exceeds protect_tokens.")] = False
    # 004: 50,000.
    part_tokens: Annotated[
        PositiveCount | None, Doc("Most tokens that one message counts for; null: no limit.")
    ] = None
    # The source documents count by the estimator.
    calibrated: Annotated[bool, Doc("Count tokens as the upstream does; false: by the estimator alone.")] = (
        True
    )
    protected_tools: Annotated[tuple[Name, ...], Doc("Names of tools whose results are never pruned.")] = (
        "skill",
    )
    protected_prefixes: Annotated[
        tuple[Name, ...], Doc("Tools whose names begin like this are protected, too.")
    ] = ()
    keep_turns: Annotated[Count, Doc("Newest user turns whose results are never pruned.")] = 0
    keep_messages: Annotated[Count, Doc("Newest messages that are never pruned.")] = 0
    placeholder: Annotated[Name, Doc("Text that replaces a cleared result.")] = (
        "[Old tool result content cleared]"
    )
    # 003: results above 1,000 characters are cut to 200.
    over_chars: Annotated[Count, Doc("Only prune results longer than this; 0: all of them.")] = 0
    keep_chars: Annotated[
        PositiveCount | None,
        Doc("Characters kept of a pruned result, from both ends; null: only the placeholder."),
    ] = None
    eager: Annotated[
        bool,
        Doc("Prune whenever it saves enough; false: only above the soft threshold, and if that suffices."),
    ] = False
    partial: Annotated[
        bool,
        Doc("Above the soft threshold, prune even if that does not suffice."),
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """How the summary of old turns is made. Its cap is min(max_tokens, max_ratio x window)."""

    method: Annotated[
        Method,
        Doc("How old turns are replaced: model (a summary), digest (quotes, without a model), drop."),
    ] = "model"
    model: Annotated[
        str | None, Doc("Model that writes the summary; null: by model_map, else the conversation's.")
    ] = None
    # Pairs of a pattern and a model; None stands for the conversation's own model (003, docs/sources.md).
    model_map: Annotated[
        tuple[tuple[str, str | None], ...],
        Doc("Summary model by pattern of the conversation's (null: itself); the preset's entries follow."),
    ] = ()
    upstream: Annotated[
        str | None, Doc("Upstream that is asked for the summary; null: the conversation's.")
    ] = None
    max_tokens: Annotated[PositiveCount, Doc("Longest summary, in tokens.")] = 4_096
    max_ratio: Annotated[PositiveRatio, Doc("Upper limit of max_tokens, as a part of the window.")] = 0.1
    # 003: 2,000.
    message_chars: Annotated[
        PositiveCount | None,
        Doc("The summary request cuts longer messages in the middle; null: only if it has to."),
    ] = None
    framing: Annotated[
        bool, Doc("Begin a summary with a line that says what it is and where its originals are searched.")
    ] = True
    kept_chars: Annotated[
        Count,
        Doc("How much of the messages that stay a quoted summary request shows, as characters."),
    ] = 4_000
    ride: Annotated[
        RideMode,
        Doc("auto: ask at the end of the last request where its prompt is cached; never: quote the history."),
    ] = "auto"
    instructions: Annotated[str, Doc("Text added to the request for a summary.")] = ""
    # Such as the current branch (000, docs/sources.md).
    extra_context: Annotated[tuple[str, ...], Doc("Lines added before the instruction.")] = ()
    timeout_seconds: Annotated[Seconds, Doc("Longest wait for one summary.")] = 120.0
    # A history of many windows is compacted in chunks, one summary each.
    max_calls: Annotated[
        PositiveCount, Doc("Most summaries made for one request; then a digest is used.")
    ] = 8
    deadline_seconds: Annotated[Seconds, Doc("Longest wait for all summaries of one request together.")] = (
        300.0
    )
    # 003 reduces the history at the threshold even if the window still holds it.
    digest_at_line: Annotated[
        bool,
        Doc("If a summary fails, use a digest above the hard threshold; false: only if nothing else fits."),
    ] = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """The texts of a compaction. Those of `adaptive` are ours; the other presets quote docs/sources.md."""

    system: Annotated[str, Doc("System prompt of the summary request; null: the preset's; blank: none.")] = ""
    instruction: Annotated[
        Prompt, Doc("Last message of the summary request, after the history; null: the preset's.")
    ] = ""
    ride: Annotated[
        str,
        Doc("Before the instruction if a summary rides; {kept}: messages that stay; null: the preset's."),
    ] = ""
    question: Annotated[
        Prompt, Doc("User message before a summary if no opening is kept; null: the preset's.")
    ] = ""
    resume: Annotated[
        Prompt, Doc("User message after a summary, so that the model continues; null: the preset's.")
    ] = ""
    dropped: Annotated[
        Prompt, Doc("Text that replaces dropped turns (method: drop); null: the preset's.")
    ] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Originals:
    """What was summarized or pruned, stored as it was for operators to read (docs/sources.md, 000)."""

    keep: Annotated[bool, Doc("Store what was summarized or pruned, for the admin port; false: never.")] = (
        True
    )
    days: Annotated[
        Annotated[float, Range(above=0, maximum=3650)] | None,
        Doc("Days to keep it; null: as long as retention.days."),
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """name: of the preset that it comes from."""

    name: str = "adaptive"
    auto: Annotated[bool, Doc("Compact automatically; false: never, not even after an overflow error.")] = (
        True
    )
    prune: Annotated[bool, Doc("Clear or shorten old tool results.")] = True
    # 003 (docs/sources.md) has the command.
    commands: Annotated[
        bool, Doc("Carry out '/compact [instructions]' sent as a user message, and answer it.")
    ] = False
    show_texts: Annotated[
        ShowTexts,
        Doc("Show texts on the admin port without an admin.token: auto: on loopback without tenants."),
    ] = "auto"
    session_summary: Annotated[
        bool,
        Doc("Keep files, commands, to-dos and titles of a session to show; needs originals.keep."),
    ] = True
    recall: Annotated[
        RecallMode,
        Doc("Bring back originals: off; auto: what is named is added; tool: an earlier name of auto."),
    ] = "off"
    recall_tokens: Annotated[PositiveCount, Doc("Most tokens that one addition brings back.")] = 1_600
    # Ski rental: what carrying old messages has cost, against what a compaction costs (docs/economics.md).
    economy: Annotated[
        float,
        Range(minimum=0, maximum=100),
        Doc("Compact once old messages have cost this many times what a compaction costs; 0: by size only."),
    ] = 1.0
    estimator: Annotated[
        Estimator,
        Doc("How tokens are estimated before usage is known: tiktoken, chars (length / 4), chars-up."),
    ] = "tiktoken"
    trigger: Annotated[Trigger, Doc("When the window counts as full.")] = field(default_factory=Trigger)
    keep: Annotated[Keep, Doc("What stays verbatim.")] = field(default_factory=Keep)
    pruning: Annotated[Pruning, Doc("How old tool results are pruned.")] = field(default_factory=Pruning)
    summary: Annotated[Summary, Doc("How old turns are summarized.")] = field(default_factory=Summary)
    prompts: Annotated[Prompts, Doc("The texts of a compaction, written here or as ${file:PATH}.")] = field(
        default_factory=Prompts
    )
    originals: Annotated[Originals, Doc("What is kept of the messages that were summarized or pruned.")] = (
        field(default_factory=Originals)
    )
