"""What a settings file may say about a policy: the fields of `gateway.core.policy`, with their ranges.

A key that is absent keeps the value of the preset, so only the keys that were written count.
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.core.policy import (
    Estimator,
    Formula,
    Keep,
    Method,
    Originals,
    Policy,
    Protects,
    Pruning,
    Summary,
    Trigger,
)
from gateway.settings.section import Section

_POLICY = Policy()
_TRIGGER, _KEEP, _PRUNING, _SUMMARY = Trigger(), Keep(), Pruning(), Summary()
_ORIGINALS = Originals()

Ratio = Annotated[float, Field(ge=0, le=1)]
PositiveRatio = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(gt=0)]


def _not_blank(text: str) -> str:
    """Upstreams refuse empty messages."""
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Prompt = Annotated[str, AfterValidator(_not_blank)]


class CompactionSection(Section):
    auto: bool = Field(
        default=_POLICY.auto,
        description="Compact by itself; false: never, not even to recover from an overflow.",
    )
    prune: bool = Field(default=_POLICY.prune, description="Shorten old tool results.")


class TriggerSection(Section):
    formula: Formula = Field(
        default=_TRIGGER.formula,
        description="'adaptive'; 'source': input or context - output; 'ratio': ratio x window - reserve.",
    )
    output_cap: PositiveCount = Field(
        default=_TRIGGER.output_cap, description="Most tokens reserved for the reply by 'source'."
    )
    input_reserve: Count | None = Field(
        default=_TRIGGER.input_reserve,
        description="Kept free below an input limit by 'source'; null: the reply, reserve_maximum at most.",
    )
    at_line: bool = Field(
        default=_TRIGGER.at_line,
        description="Full at the line of 'source' or 'ratio' already; false: only above it.",
    )
    reserve_minimum: Count = Field(
        default=_TRIGGER.reserve_minimum,
        description="Fewest tokens reserved for the reply, as far as reserve_ratio allows.",
    )
    reserve_maximum: PositiveCount = Field(
        default=_TRIGGER.reserve_maximum, description="Most tokens reserved for the reply otherwise."
    )
    reserve_ratio: Ratio = Field(
        default=_TRIGGER.reserve_ratio, description="Most of the window reserved for the reply."
    )
    hard_ratio: PositiveRatio = Field(
        default=_TRIGGER.hard_ratio, description="The hard line is never above this part of the window."
    )
    soft_ratio: PositiveRatio = Field(
        default=_TRIGGER.soft_ratio, description="The soft line of 'ratio', like hard_ratio."
    )
    client_margin: Count = Field(
        default=_TRIGGER.client_margin,
        description="Tokens below the window, so that clients never compact by themselves.",
    )
    client_margin_from: Count = Field(
        default=_TRIGGER.client_margin_from,
        description="Smallest window, in tokens, to which client_margin applies.",
    )
    growth_turns: Annotated[float, Field(ge=0)] = Field(
        default=_TRIGGER.growth_turns,
        description="The soft line lies this many turns of recent growth below the hard line.",
    )
    soft_minimum: Ratio = Field(
        default=_TRIGGER.soft_minimum, description="Least distance of the lines, as part of the window."
    )
    soft_maximum: Ratio = Field(
        default=_TRIGGER.soft_maximum, description="Largest distance of the lines, as part of the window."
    )
    early: bool = Field(
        default=_TRIGGER.early,
        description="Apply a prepared summary above the soft line; false: above the hard line.",
    )
    target_ratio: Ratio = Field(
        default=_TRIGGER.target_ratio,
        description="Size after a compaction, between the floor (0) and the hard line (1).",
    )


class KeepSection(Section):
    tail_tokens: Count = Field(
        default=_KEEP.tail_tokens, description="Recent tokens kept verbatim; the open group always is."
    )
    tail_ratio: Ratio = Field(
        default=_KEEP.tail_ratio, description="Most of the hard line that the tail takes."
    )
    tail_window: Ratio = Field(
        default=_KEEP.tail_window,
        description="The tail as part of the window instead; 0: tail_tokens and tail_ratio hold.",
    )
    tail_messages: Count = Field(
        default=_KEEP.tail_messages,
        description="Recent messages kept verbatim, as far as there is room; 0: by tokens only.",
    )
    opening: bool = Field(
        default=_KEEP.opening,
        description="Keep the messages before the first reply; false: the summary answers a question.",
    )
    opening_ratio: Ratio = Field(
        default=_KEEP.opening_ratio,
        description="Most of the window for the opening; more is cut in the middle, visibly.",
    )


class PruningSection(Section):
    protect_tokens: Count = Field(
        default=_PRUNING.protect_tokens, description="Newest tokens of tool results that are never touched."
    )
    protect_ratio: Ratio = Field(
        default=_PRUNING.protect_ratio,
        description="Most of the hard line that is protected so; 1: no such bound.",
    )
    minimum_tokens: Count = Field(
        default=_PRUNING.minimum_tokens, description="Fewest tokens a pruning must save to be worth it."
    )
    minimum_ratio: Ratio = Field(
        default=_PRUNING.minimum_ratio,
        description="The same as part of the hard line, if that is less; 1: no such bound.",
    )
    protects: Protects = Field(
        default=_PRUNING.protects, description="What protect_tokens count: 'results' or 'everything'."
    )
    overshoot: bool = Field(
        default=_PRUNING.overshoot, description="The message that fills protect_tokens is protected, too."
    )
    part_tokens: PositiveCount | None = Field(
        default=_PRUNING.part_tokens, description="Most tokens that one message counts for; null: no cap."
    )
    calibrated: bool = Field(
        default=_PRUNING.calibrated,
        description="Count as upstream does; false: by the estimator alone, as the documents do.",
    )
    protected_tools: list[Annotated[str, Field(min_length=1)]] = Field(
        default=list(_PRUNING.protected_tools), description="Tools whose results are never touched."
    )
    protected_prefixes: list[Annotated[str, Field(min_length=1)]] = Field(
        default=list(_PRUNING.protected_prefixes),
        description="Tools whose names begin so are protected like protected_tools.",
    )
    keep_turns: Count = Field(
        default=_PRUNING.keep_turns, description="Newest user turns whose results are never touched."
    )
    keep_messages: Count = Field(
        default=_PRUNING.keep_messages, description="Newest messages that are never touched."
    )
    placeholder: Annotated[str, Field(min_length=1)] = Field(
        default=_PRUNING.placeholder, description="What stands for a result that was cleared."
    )
    over_chars: Count = Field(
        default=_PRUNING.over_chars, description="Only results of more characters; 0: all of them."
    )
    keep_chars: PositiveCount | None = Field(
        default=_PRUNING.keep_chars,
        description="Characters left of a result, head and tail; null: the placeholder alone.",
    )
    eager: bool = Field(
        default=_PRUNING.eager,
        description="Prune whenever it is worth it; false: only near the line and if it suffices.",
    )
    partial: bool = Field(
        default=_PRUNING.partial, description="Near the line prune also where it does not suffice."
    )


class SummarySection(Section):
    method: Method = Field(
        default=_SUMMARY.method,
        description="Who writes it: 'model'; 'digest': quotes, no model; 'drop': old turns simply go.",
    )
    model: str | None = Field(
        default=_SUMMARY.model, description="Model that summarises; null: the conversation's."
    )
    model_map: dict[str, str | None] = Field(
        default=dict(_SUMMARY.model_map),
        description="Where model is null: who summarises for which model, by pattern; the preset's follow.",
    )
    upstream: str | None = Field(
        default=_SUMMARY.upstream, description="Upstream that summarises; null: the conversation's."
    )
    max_tokens: PositiveCount = Field(default=_SUMMARY.max_tokens, description="Longest summary.")
    max_ratio: PositiveRatio = Field(
        default=_SUMMARY.max_ratio, description="Longest summary as part of the window, if that is less."
    )
    message_chars: PositiveCount | None = Field(
        default=_SUMMARY.message_chars,
        description="Longer messages are cut in the middle for the summariser; null: only if they must.",
    )
    instructions: str = Field(
        default=_SUMMARY.instructions, description="Added to the request for a summary."
    )
    extra_context: list[str] = Field(
        default=list(_SUMMARY.extra_context), description="Lines that stand before the instruction."
    )
    timeout_seconds: Annotated[float, Field(gt=0)] = Field(
        default=_SUMMARY.timeout_seconds, description="Patience for a summary."
    )
    max_calls: PositiveCount = Field(
        default=_SUMMARY.max_calls,
        description="Summaries that one request may need; beyond them a digest made without a model.",
    )
    deadline_seconds: Annotated[float, Field(gt=0)] = Field(
        default=_SUMMARY.deadline_seconds, description="Patience for all of them together."
    )
    digest_at_line: bool = Field(
        default=_SUMMARY.digest_at_line,
        description="Without a summary a digest at the hard line; false: only beyond the window.",
    )


class PromptsSection(Section):
    """Each text as it is or as `${file:PATH}`."""

    system: str | None = Field(
        default=None, description="System prompt of the summariser; null: the preset's; blank: none."
    )
    instruction: Prompt | None = Field(
        default=None, description="Stands behind the history that is summarised; null: the preset's."
    )
    question: Prompt | None = Field(
        default=None, description="What a summary without an opening answers; null: the preset's."
    )
    resume: Prompt | None = Field(
        default=None, description="What the user says after a summary; null: the preset's."
    )
    dropped: Prompt | None = Field(
        default=None, description="Stands for turns that are left out ('drop'); null: the preset's."
    )


class OriginalsSection(Section):
    keep: bool = Field(
        default=_ORIGINALS.keep,
        description="Keep what was summarised or pruned as it was, for the admin port; false: never.",
    )
    days: Annotated[float, Field(gt=0, le=3650)] | None = Field(
        default=_ORIGINALS.days, description="For so long; null: retention.days."
    )


class PresetSection(Section):
    """What a file under `config/presets` holds."""

    compaction: CompactionSection = Field(
        default_factory=CompactionSection, description="What is done at all."
    )
    commands: bool = Field(
        default=_POLICY.commands,
        description="A last message '/compact [instructions]' is carried out and answered by the gateway.",
    )
    estimator: Estimator = Field(
        default=_POLICY.estimator,
        description="How texts are counted before usage corrects it: tiktoken, chars (length / 4), chars-up.",
    )
    trigger: TriggerSection = Field(default_factory=TriggerSection, description="When is it full?")
    keep: KeepSection = Field(default_factory=KeepSection, description="What stays as it is.")
    pruning: PruningSection = Field(default_factory=PruningSection, description="Old tool results.")
    summary: SummarySection = Field(default_factory=SummarySection, description="Old turns.")
    prompts: PromptsSection = Field(
        default_factory=PromptsSection, description="The words of a compaction; text or ${file:PATH}."
    )
    originals: OriginalsSection = Field(
        default_factory=OriginalsSection, description="What was taken out of the conversations."
    )


class PresetName(Section):
    preset: str = Field(
        default="adaptive", description="What holds where a key is absent: a file of config/presets."
    )


class PolicySection(PresetSection, PresetName):
    """A preset and the keys that differ from it."""
