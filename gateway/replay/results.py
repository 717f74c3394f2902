"""What came of a recording under one policy: one value for each request, their sums, and their price. Values
only; programs get them as they are (`--json`).

What a provider's cache has of a prompt that is sent is simulated (`measuring`). Of the prompts as they came,
what two begin with in common is priced as read, and the rest as written, where the price list makes that
difference. A model without a price costs an unknown amount, not nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from gateway.activity.series import PrefixChange
from gateway.core.compaction.plan import PlanName
from gateway.core.compaction.request import SummaryKind
from gateway.core.money import Price, add_usd, count_usd
from gateway.core.sizing.usage import Usage

# What models write if they are not told a length, with the headings of the built-in prompt.
SUMMARY_TOKENS: Final = 1_500
# What a result does not come from a recording, or from a decision of the gateway.
SIMULATED: Final = (
    f"Simulated: nothing was sent. Every summary has at most {SUMMARY_TOKENS:,} tokens and no content, and "
    "one that is made in the background is ready before the next request. Prompts and replies have the size "
    "that was recorded, or else our own count of it; no request is refused."
)
# Without prices: what providers ask for tokens from a cache, and for those of a reply, beside others.
_CACHED_SHARE: Final = 0.1
_OUTPUT_FACTOR: Final = 5

# before: the request waits for it. after: it is made in the background, for the next request.
When = Literal["before", "after"]


class CompactionRun(msgspec.Struct, frozen=True, kw_only=True):
    """A summary or a digest that was made, or that failed."""

    when: When
    kind: SummaryKind
    # Messages up to the end of the summary; 0 if none was made.
    covers: int = 0
    pre_tokens: int
    post_tokens: int | None = None
    # Why none was made.
    failure: str | None = None


class SummaryCallRun(msgspec.Struct, frozen=True):
    """One call for a summary, in tokens."""

    model: str
    prompt_tokens: int
    output_tokens: int
    # Of the prompt: read from the provider's cache, and written to it.
    cached_tokens: int = 0
    written_tokens: int = 0
    # Whether it repeated the conversation's own request instead of quoting the history.
    is_riding: bool = False

    @property
    def usage(self) -> Usage:
        return Usage(self.prompt_tokens, self.output_tokens, self.cached_tokens, self.written_tokens)


class RequestRun(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Tokens as the upstream counts them, or by our count if nothing was recorded."""

    # The branch that the plan puts it on.
    conversation: str
    purpose: str
    model: str
    messages: int
    # Of the body.
    size_bytes: int
    plan: PlanName
    # As the headers of a running gateway say it.
    estimated_received: int
    estimated_sent: int
    # The prompt as it came, and as it went upstream.
    received: int = 0
    sent: int = 0
    # The parts of both that the prompt before it begins with, too.
    received_cached: int = 0
    sent_cached: int = 0
    # Of the prompt as it went upstream: read from the provider's cache, and written to it. None where it has
    # none.
    cache_read: int | None = None
    cache_written: int | None = None
    # Of the prompt as it came: before the messages, and what no compaction replaces.
    environment: int = 0
    floor: int = 0
    output: int = 0
    is_usage_recorded: bool = False
    # How many messages the summary stands for that it is sent with; 0 without one.
    covers: int = 0
    change: PrefixChange | None = None
    # Whether the client's own array does not begin with the one before.
    is_rewritten: bool = False
    window: int | None = None
    soft: int | None = None
    hard: int | None = None
    warning: str | None = None
    compactions: tuple[CompactionRun, ...] = ()
    # Messages that are sent shortened from this request on, and where they are.
    pruned_messages: int = 0
    pruned: tuple[int, ...] = ()
    calls: tuple[SummaryCallRun, ...] = ()

    @property
    def usage(self) -> Usage:
        """As it is sent. Without a simulated cache: what it shares with the one before is read."""
        if self.cache_read is None:
            return Usage(self.sent, self.output, self.sent_cached, self.sent - self.sent_cached)
        return Usage(self.sent, self.output, self.cache_read, self.cache_written)


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """Of requests. Tokens."""

    requests: int
    received: int
    sent: int
    received_cached: int
    sent_cached: int
    output: int
    compactions: int
    digests: int
    failures: int
    prunings: int
    # Of the sent arrays, those that the client itself causes included.
    breaks: int
    rewrites: int
    calls: int
    call_prompt: int
    call_output: int
    largest_received: int
    largest_sent: int
    # The smallest window of all requests; None if none is known.
    window: int | None
    # Requests that were sent although they do not fit the window.
    too_large: int
    recorded_usages: int


def add_up(runs: Sequence[RequestRun]) -> Sums:
    made = [compaction for run in runs for compaction in run.compactions if compaction.failure is None]
    calls = [call for run in runs for call in run.calls]
    digests = sum(compaction.kind == "digest" for compaction in made)
    return Sums(
        requests=len(runs),
        received=sum(run.received for run in runs),
        sent=sum(run.sent for run in runs),
        received_cached=sum(run.received_cached for run in runs),
        sent_cached=sum(run.sent_cached for run in runs),
        output=sum(run.output for run in runs),
        compactions=len(made) - digests,
        digests=digests,
        failures=sum(len(run.compactions) for run in runs) - len(made),
        prunings=sum(run.pruned_messages > 0 for run in runs),
        breaks=sum(run.change is not None for run in runs),
        rewrites=sum(run.is_rewritten for run in runs),
        calls=len(calls),
        call_prompt=sum(call.prompt_tokens for call in calls),
        call_output=sum(call.output_tokens for call in calls),
        largest_received=max((run.received for run in runs), default=0),
        largest_sent=max((run.sent for run in runs), default=0),
        window=min((run.window for run in runs if run.window is not None), default=None),
        too_large=sum(run.window is not None and run.sent > run.window for run in runs),
        recorded_usages=sum(run.is_usage_recorded for run in runs),
    )


class Cost(msgspec.Struct, frozen=True):
    """US dollars; None while no price is known."""

    without_usd: float | None
    # The summaries included.
    with_usd: float | None
    summaries_usd: float | None
    saved_usd: float | None
    # Requests of models without a price.
    unpriced_requests: int


@dataclass(frozen=True, slots=True)
class Pricing:
    """model: in place of those of the requests, if it is given. Summaries that a policy has made by another
    model keep that one's price.
    """

    find: Callable[[str], Price | None]
    model: str | None = None

    def count(self, requests: Iterable[RequestRun]) -> Cost:
        received = sent = summaries = None
        unpriced = 0
        for each in requests:
            price = self.find(self.model or each.model)
            if price is None:
                unpriced += 1
                continue
            fresh = each.received - each.received_cached
            as_received = Usage(each.received, each.output, each.received_cached, fresh)
            received = add_usd(received, count_usd(price, as_received))
            sent = add_usd(sent, count_usd(price, each.usage))
            for call in each.calls:
                own = self.find(call.model) if call.model != each.model else None
                summaries = add_usd(summaries, count_usd(own or price, call.usage))
        total = add_usd(sent, summaries)
        saved = received - total if received is not None and total is not None else None
        return Cost(received, total, summaries, saved, unpriced)


# Policies side by side


class Result(msgspec.Struct, frozen=True):
    """What came of some requests under one policy."""

    policy: str
    # Of several.
    is_best: bool
    sums: Sums
    sent_reuse: float
    received_reuse: float
    cost: Cost

    @property
    def rank(self) -> tuple[int, float]:
        """The smallest is the best: fewest requests beyond the window, then least money; without prices the
        tokens that have to be paid for, in tokens of a prompt that no cache has.
        """
        sums, total = self.sums, self.cost.with_usd
        fresh = sums.sent - (1 - _CACHED_SHARE) * sums.sent_cached
        weight = fresh + sums.call_prompt + _OUTPUT_FACTOR * sums.call_output
        return sums.too_large, total if total is not None else weight


def make_result(policy: str, requests: Sequence[RequestRun], pricing: Pricing) -> Result:
    sums = add_up(requests)
    sent_reuse = sums.sent_cached / sums.sent if sums.sent else 0.0
    received_reuse = sums.received_cached / sums.received if sums.received else 0.0
    return Result(policy, False, sums, sent_reuse, received_reuse, pricing.count(requests))


def mark_best(results: Sequence[Result]) -> list[Result]:
    """Of one alone there is no best."""
    best = min(results, key=lambda result: result.rank) if len(results) > 1 else None
    return [msgspec.structs.replace(result, is_best=result is best) for result in results]


# All of a replay


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """A recording under one policy."""

    recording: str
    policy: str
    requests: tuple[RequestRun, ...]
    # Requests that a gateway relays unread: another path, a body it does not understand, history that is
    # stored upstream.
    unread: int = 0
    # Requests that failed in the recording.
    failed: int = 0


class PlayedSource(msgspec.Struct, frozen=True, kw_only=True):
    """A recording under every policy, in their order."""

    name: str
    kind: str = ""
    skipped: int = 0
    # Of the files, and of the bodies of all requests.
    file_bytes: int
    request_bytes: int = 0
    # Why it was not played.
    failure: str | None = None
    results: tuple[Result, ...] = ()
    played: tuple[Played, ...] = ()


class ReplayReport(msgspec.Struct, frozen=True):
    """seconds: that it took. policies: the sums of all recordings under each."""

    simulated: str
    seconds: float
    policies: list[Result]
    sessions: list[PlayedSource]


def make_report(
    policies: Sequence[str], sessions: Sequence[PlayedSource], pricing: Pricing, seconds: float
) -> ReplayReport:
    """policies: their names."""
    results = [
        make_result(
            name, [run for each in sessions if each.played for run in each.played[place].requests], pricing
        )
        for place, name in enumerate(policies)
    ]
    return ReplayReport(
        SIMULATED, round(seconds, 3), mark_best(results), [_with_results(each, pricing) for each in sessions]
    )


def _with_results(session: PlayedSource, pricing: Pricing) -> PlayedSource:
    results = [make_result(each.policy, each.requests, pricing) for each in session.played]
    return msgspec.structs.replace(session, results=tuple(mark_best(results)))
