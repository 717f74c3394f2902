"""What came of a recording under one policy: one value for each request, and their sums. Values only."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from gateway.activity.series import PrefixChange
from gateway.core.compaction.plan import PlanName
from gateway.core.compaction.request import SummaryKind

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
    received: int
    sent: int
    # The parts of both that the prompt before it begins with, too.
    received_cached: int
    sent_cached: int
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


class Sums(msgspec.Struct, kw_only=True):
    """Of requests. Tokens."""

    requests: int = 0
    received: int = 0
    sent: int = 0
    received_cached: int = 0
    sent_cached: int = 0
    output: int = 0
    compactions: int = 0
    digests: int = 0
    failures: int = 0
    prunings: int = 0
    # Of the sent arrays, those that the client itself causes included.
    breaks: int = 0
    rewrites: int = 0
    calls: int = 0
    call_prompt: int = 0
    call_output: int = 0
    largest_received: int = 0
    largest_sent: int = 0
    # The smallest window of all requests; None if none is known.
    window: int | None = None
    # Requests that were sent although they do not fit the window.
    too_large: int = 0
    recorded_usages: int = 0

    @property
    def received_reuse(self) -> float:
        """The share of the prompts that a provider's cache could reuse, as the client sends them."""
        return self.received_cached / self.received if self.received else 0.0

    @property
    def sent_reuse(self) -> float:
        return self.sent_cached / self.sent if self.sent else 0.0


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


def add_up(requests: Iterable[RequestRun]) -> Sums:
    sums = Sums()
    for each in requests:
        _add_sizes(sums, each)
        _add_changes(sums, each)
    return sums


def _add_sizes(sums: Sums, each: RequestRun) -> None:
    sums.requests += 1
    sums.received += each.received
    sums.sent += each.sent
    sums.received_cached += each.received_cached
    sums.sent_cached += each.sent_cached
    sums.output += each.output
    sums.recorded_usages += each.is_usage_recorded
    sums.largest_received = max(sums.largest_received, each.received)
    sums.largest_sent = max(sums.largest_sent, each.sent)
    if each.window is not None:
        sums.window = min(sums.window or each.window, each.window)
        sums.too_large += each.sent > each.window


def _add_changes(sums: Sums, each: RequestRun) -> None:
    for compaction in each.compactions:
        if compaction.failure is not None:
            sums.failures += 1
        elif compaction.kind == "digest":
            sums.digests += 1
        else:
            sums.compactions += 1
    sums.prunings += each.pruned_messages > 0
    sums.breaks += each.change is not None
    sums.rewrites += each.is_rewritten
    sums.calls += len(each.calls)
    sums.call_prompt += sum(call.prompt_tokens for call in each.calls)
    sums.call_output += sum(call.output_tokens for call in each.calls)
