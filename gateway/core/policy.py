"""What a tenant wants done when the window fills up: every setting that the decisions use, declared once.

A declaration is the type, the range, the default and the line of help: `gateway.settings` reads files by
it, and makes of it the reference and the schema for editors. A preset (`config/presets`) is the values that
differ from these. Tokens are the upstream's own; a ratio is a part of what the field's text names.
"""

from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic.dataclasses import dataclass

STRICT: Final = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
# For whom a key is: everybody; those who make presets; those who run the process.
Readers = Literal["main", "preset", "operator"]
PART: Final = "x-part"
T = TypeVar("T")


def key(default: T, text: str, *, part: Readers = "main", shown: JsonValue = None, hidden: bool = False) -> T:
    """A key of a settings file. text: a line of help. shown: the default as a file has it, if otherwise.

    hidden: the value may contain a secret, so no `repr` has it.
    """
    more: dict[str, JsonValue] = {PART: part} if shown is None else {PART: part, "default": shown}
    made: T = Field(default=default, description=text, json_schema_extra=more, repr=not hidden)
    return made


def detail(default: T, text: str, *, shown: JsonValue = None) -> T:
    """A key that presets set. Set alone, it seldom makes sense."""
    return key(default, text, part="preset", shown=shown)


def bound(default: T, text: str, *, hidden: bool = False) -> T:
    """A key for those who run the process: a bound, or a way to another system."""
    return key(default, text, part="operator", hidden=hidden)


def prompt(text: str) -> str:
    """A text of a preset. In a file, null is that of the preset."""
    made: str = Field(default="", description=text, json_schema_extra={PART: "preset", "default": None})
    return made


def section(kind: type[T], text: str, *, part: Readers = "main") -> T:
    """A key with keys of its own."""
    made: T = Field(default_factory=kind, description=text, json_schema_extra={PART: part})
    return made


def _check_not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _list_pairs(value: object) -> object:
    """A file has a mapping, and a policy is hashable."""
    return tuple(value.items()) if isinstance(value, dict) else value


Ratio = Annotated[float, Field(ge=0, le=1)]
PositiveRatio = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(min_length=1)]
Names = tuple[Name, ...]
# Patterns, and what each stands for. Not as a dict: its order decides.
Pairs = Annotated[
    tuple[tuple[str, str | None], ...],
    BeforeValidator(_list_pairs, json_schema_input_type=dict[str, str | None]),
]
_NULLABLE: Final = WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]})
# In a file, null is the text of the preset. Upstreams refuse empty messages.
Text = Annotated[str, _NULLABLE]
Prompt = Annotated[str, AfterValidator(_check_not_blank), _NULLABLE]

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


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
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

    formula: Formula = detail(
        "adaptive", "adaptive; source: input or context - output; ratio: ratio x window - reserve."
    )
    output_cap: PositiveCount = detail(32_000, "source: most tokens reserved for the reply.")
    input_reserve: Count | None = detail(
        0, "source: tokens kept free below an input limit; null: the reply, up to reserve_maximum."
    )
    # Later versions of opencode compare with >=.
    at_line: bool = detail(False, "source, ratio: true: full at the threshold; false: full only above it.")
    reserve_minimum: Count = detail(8_000, "Fewest tokens reserved for it, unless reserve_ratio allows less.")
    reserve_maximum: PositiveCount = detail(20_000, "Most tokens reserved for the reply.")
    reserve_ratio: Ratio = detail(0.25, "Largest part of the window reserved for the reply.")
    hard_ratio: PositiveRatio = key(0.75, "Highest hard threshold, as a part of the window.")
    soft_ratio: PositiveRatio = detail(0.75, "ratio: like hard_ratio, for the soft threshold.")
    client_margin: Count = bound(36_000, "Tokens to stay below the window, so that clients do not compact.")
    growth_turns: Annotated[float, Field(ge=0)] = detail(
        2.0, "The soft threshold lies this many turns of recent growth below the hard one."
    )
    soft_minimum: Ratio = detail(0.05, "Smallest distance of the two thresholds, as a part of the window.")
    soft_maximum: Ratio = detail(0.25, "Largest distance of the two thresholds, as a part of the window.")
    early: bool = detail(False, "Use a prepared summary above the soft threshold, not the hard one.")
    target_ratio: Ratio = detail(0.5, "Size after a compaction, from fixed parts (0) to hard threshold (1).")
    fewest_turns: Count = detail(
        6, "adaptive: average turns to fit between two compactions, if the window allows; 0: any number."
    )


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Keep:
    """Which messages stay verbatim after a pivot.

    tail = min(tail_tokens, tail_ratio x hard), or tail_window x window if that is set (003,
    docs/sources.md); the open group always stays.
    """

    tail_tokens: Count = key(20_000, "Tokens of recent messages kept verbatim; the open group always is.")
    tail_ratio: Ratio = detail(0.15, "Largest tail, as a part of the hard threshold.")
    tail_window: Ratio = detail(0.0, "The tail as a part of the window; 0: tail_tokens and tail_ratio apply.")
    # Whole groups, as far as the window has room for them.
    tail_messages: Count = detail(0, "Recent messages kept verbatim if there is room; 0: by tokens only.")
    opening: bool = key(True, "Keep what is before the first reply; false: the summary replaces it, too.")


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Pruning:
    """Which old tool results become placeholders (docs/sources.md: 000, 003 and 004)."""

    protect_tokens: Count = key(40_000, "Newest tokens of tool results that are never pruned.")
    protect_ratio: Ratio = detail(0.3, "Upper limit of protect_tokens, as a part of the hard threshold.")
    minimum_tokens: Count = key(20_000, "Fewest tokens that a pruning must save.")
    minimum_ratio: Ratio = detail(0.1, "Upper limit of minimum_tokens, as a part of the hard threshold.")
    protects: Protects = detail("results", "What protect_tokens counts: results or everything.")
    overshoot: bool = detail(False, "Also protect the message that exceeds protect_tokens.")
    # 004: 50,000.
    part_tokens: PositiveCount | None = detail(None, "Most tokens that a message counts for; null: no limit.")
    # The source documents count by the estimator.
    calibrated: bool = detail(True, "Count tokens as the upstream does; false: by the estimator alone.")
    protected_tools: Names = key(("skill",), "Names of tools whose results are never pruned.")
    protected_prefixes: Names = detail((), "Tools whose names begin like this are protected, too.")
    keep_turns: Count = detail(0, "Newest user turns whose results are never pruned.")
    keep_messages: Count = detail(0, "Newest messages that are never pruned.")
    placeholder: Name = key("[Old tool result content cleared]", "Text that replaces a cleared result.")
    # 003: results above 1,000 characters are cut to 200.
    over_chars: Count = detail(0, "Only prune results longer than this; 0: all of them.")
    keep_chars: PositiveCount | None = detail(
        None, "Characters kept of a pruned result, from both ends; null: only the placeholder."
    )
    eager: bool = detail(False, "Prune whenever it saves enough; false: if it spares a summary.")
    partial: bool = detail(False, "Above the soft threshold, prune even if that does not suffice.")


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Summary:
    """How the summary of old turns is made. Its cap is min(max_tokens, window / 10)."""

    method: Method = detail("model", "How old turns are replaced: model, digest (quotes, no model), drop.")
    model: Name | None = key(None, "Model that writes it; null: by model_map, else the conversation's.")
    # Pairs of a pattern and a model; None stands for the conversation's own model (003, docs/sources.md).
    model_map: Pairs = detail(
        (),
        "Summary model by pattern of the conversation's (null: itself); the preset's entries follow.",
        shown={},
    )
    upstream: Name | None = key(None, "Upstream that is asked for the summary; null: the conversation's.")
    max_tokens: PositiveCount = key(4_096, "Longest summary, in tokens.")
    # 003: 2,000.
    message_chars: PositiveCount | None = detail(
        None, "The summary request cuts longer messages in the middle; null: only if it has to."
    )
    framing: bool = detail(True, "Begin a summary with what it is and where its originals are searched.")
    kept_chars: Count = detail(4_000, "Characters of messages that stay in a quoted summary request.")
    ride: RideMode = detail(
        "auto",
        "auto: ask at the end of the last request where its prompt is cached; never: quote the history.",
    )
    instructions: str = key("", "Text added to the request for a summary.")
    # Such as the current branch (000, docs/sources.md).
    extra_context: tuple[str, ...] = bound((), "Lines added before the instruction.")
    timeout_seconds: Seconds = key(120.0, "Longest wait for one summary.")
    # A history of many windows is compacted in chunks, one summary each.
    max_calls: PositiveCount = bound(8, "Most summaries made for one request; then a digest is used.")
    deadline_seconds: Seconds = bound(300.0, "Longest wait for all summaries of one request together.")
    # 003 reduces the history at the threshold even if the window still holds it.
    digest_at_line: bool = detail(
        False, "If a summary fails, use a digest above the hard threshold; false: only if nothing else fits."
    )


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Prompts:
    """The texts of a compaction. Those of `adaptive` are ours; the other presets quote docs/sources.md."""

    system: Text = prompt("System prompt of the summary request; null: the preset's; blank: none.")
    instruction: Prompt = prompt("Last message of the summary request; null: the preset's.")
    ride: Text = prompt("Before it if a summary rides; {kept}: messages that stay; null: the preset's.")
    question: Prompt = prompt("User message before a summary if no opening is kept; null: the preset's.")
    resume: Prompt = prompt("User message after a summary, so that the model continues; null: the preset's.")
    dropped: Prompt = prompt("Text that replaces dropped turns (method: drop); null: the preset's.")


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Originals:
    """What was summarized or pruned, stored as it was for operators to read (docs/sources.md, 000)."""

    keep: bool = key(True, "Store what was summarized or pruned, for the admin port; false: never.")
    days: Annotated[float, Field(gt=0, le=3650)] | None = key(
        None, "Days to keep it; null: as long as retention.days."
    )

    def find_seconds(self, retention_seconds: float) -> float:
        """How long what is kept is kept."""
        return retention_seconds if self.days is None else self.days * 86_400


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Compaction:
    auto: bool = key(True, "Compact automatically; false: never, not even after an overflow error.")
    prune: bool = key(True, "Clear or shorten old tool results.")


@dataclass(config=STRICT, frozen=True, kw_only=True, slots=True)
class Policy:
    """The whole section of a policy: a preset, and what differs from it."""

    preset: str = key("adaptive", "Where absent keys come from: a file of config/presets, by name.")
    compaction: Compaction = section(Compaction, "What may be done without being asked.")
    # 003 (docs/sources.md) has the command.
    commands: bool = key(False, "Carry out '/compact [instructions]' sent as a user message, and answer it.")
    show_texts: ShowTexts = key(
        "auto", "Show texts on the admin port without an admin.token: auto: on loopback without tenants."
    )
    session_summary: bool = bound(
        True, "Show files, commands, to-dos, titles of a session; needs originals.keep."
    )
    recall: RecallMode = key("off", "Bring back originals: off; auto: what is named; tool: a name of auto.")
    # Ski rental: what carrying old messages has cost, against what a compaction costs (docs/economics.md).
    economy: Annotated[float, Field(ge=0, le=100)] = key(
        1.0, "Compact once old messages have cost this many times what a compaction costs; 0: by size only."
    )
    estimator: Estimator = detail(
        "tiktoken", "How tokens are estimated before usage is known: tiktoken, chars (length / 4), chars-up."
    )
    trigger: Trigger = section(Trigger, "When the window counts as full.")
    keep: Keep = section(Keep, "What stays verbatim.")
    pruning: Pruning = section(Pruning, "How old tool results are pruned.")
    summary: Summary = section(Summary, "How old turns are summarized.")
    prompts: Prompts = section(Prompts, "The texts of a compaction, written here or as ${file:PATH}.")
    originals: Originals = section(Originals, "What is kept of the messages that were summarized or pruned.")
