"""The values of one exchange with an upstream: the call, and how it ended."""

from collections.abc import Awaitable, Callable

import msgspec

from gateway.http.client import UpstreamCall
from gateway.pipeline.refusal_probe import HeldResponse, ProbeMode
from gateway.wire.reader import Reading
from gateway.wire.reading import OnEvent


class Outcome(msgspec.Struct, frozen=True):
    """The response, as far as it came."""

    status: int
    # Its usage and other facts.
    reading: Reading


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A call and what to do with its response."""

    call: UpstreamCall
    # The call asks for usage that its client did not ask for; makes the same call without, for the few
    # upstreams that refuse it. The chunk that it adds to a stream is taken out of the response.
    make_without_usage: Callable[[], Awaitable[UpstreamCall]] | None = None
    # Added to the response.
    headers: dict[str, str] = {}
    # Which responses are held back until it is known whether they call the request too large.
    probe: ProbeMode = "none"
    # Called once, when the response has ended. Also if the client hangs up early (clients close at `[DONE]`).
    on_outcome: Callable[[Outcome], None] | None = None
    # Called with each event of the response, if `on_outcome` is set.
    on_event: OnEvent | None = None


class Forwarded(msgspec.Struct, frozen=True, kw_only=True):
    """How an exchange ended."""

    # The upstream refused to be asked for usage, and answered without.
    refused_usage: bool = False
    # The response, if it called the request too large; then nothing of it was sent downstream.
    held: HeldResponse | None = None
