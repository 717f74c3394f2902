"""The values of one exchange with an upstream: the call, and how it ended."""

from collections.abc import Awaitable, Callable

import msgspec

from gateway.upstream.refusal_probe import HeldResponse, ProbeMode
from gateway.upstream.sending import UpstreamCall
from gateway.wire.response.reader import Reading
from gateway.wire.sse import SseEvent


class Outcome(msgspec.Struct, frozen=True):
    """The response, as far as it came."""

    status: int
    # Its usage and other facts.
    reading: Reading


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A call and what to do with its response."""

    call: UpstreamCall
    # Makes the same call without the injected `include_usage`, if it was injected. Few upstreams refuse it.
    # The chunk that it adds is taken out of the response.
    make_without_usage: Callable[[], Awaitable[UpstreamCall]] | None = None
    # Added to the response.
    headers: dict[str, str] = {}
    # Which responses are held back until it is known whether they call the request too large.
    probe: ProbeMode = "none"
    # Called once, when the response has ended. Also if the client hangs up early (clients close at `[DONE]`).
    on_outcome: Callable[[Outcome], None] | None = None
    # Called with each event of the response, if `on_outcome` is set.
    on_event: Callable[[SseEvent], None] | None = None


class Forwarded(msgspec.Struct, frozen=True):
    """How an exchange ended."""

    # The upstream refused the injected option, and answered without it.
    refused_usage_option: bool
    # The response, if it called the request too large; then nothing of it was sent downstream.
    held: HeldResponse | None
