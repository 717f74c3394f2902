"""The values of one exchange with an upstream: the call, and how it ended."""

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from gateway.http.client import UpstreamCall
from gateway.outgoing.call_maker import NOTHING_ADDED, Additions
from gateway.pipeline.refusal_probe import HeldResponse, ProbeMode
from gateway.wire.response.reader import Reading
from gateway.wire.sse import SseEvent


class Outcome(msgspec.Struct, frozen=True):
    """The response, as far as it came."""

    status: int
    # Its usage and other facts.
    reading: Reading


class ReplyEditor(Protocol):
    """Changes a successful response on its way to the client.

    holds_all: nothing of the response leaves before its end. headers: of the gateway's own, which are known
    at its end, and sent if nothing has left by then.
    """

    holds_all: bool
    headers: dict[str, str]

    def feed(self, piece: bytes) -> bytes:
        """What the client may see now."""

    async def end(self) -> bytes | None:
        """The rest. None if another response follows as a part of the same, or an error: the client's end is
        the caller's to send then.
        """


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A call and what to do with its response."""

    call: UpstreamCall
    # What was added to the call, and makes the same call with no more than these additions. Few upstreams
    # refuse any. The chunk that `usage` adds to a stream is taken out of the response.
    additions: Additions = NOTHING_ADDED
    make_with: Callable[[Additions], Awaitable[UpstreamCall]] | None = None
    # Added to the response.
    headers: dict[str, str] = {}
    # Which responses are held back until it is known whether they call the request too large.
    probe: ProbeMode = "none"
    # Called once, when the response has ended. Also if the client hangs up early (clients close at `[DONE]`).
    on_outcome: Callable[[Outcome], None] | None = None
    # Called with each event of the response, if `on_outcome` is set.
    on_event: Callable[[SseEvent], None] | None = None
    # None for a response that passes unchanged.
    editor: ReplyEditor | None = None
    # The client waits for more of a response. Any failure is reported to the caller, and not sent.
    is_follow_up: bool = False


class FailedFollowUp(msgspec.Struct, frozen=True):
    """An error of the upstream, its body decoded."""

    status: int
    body: bytes


class Forwarded(msgspec.Struct, frozen=True, kw_only=True):
    """How an exchange ended."""

    # What the upstream refused, and answered without.
    refused: Additions = NOTHING_ADDED
    # The response, if it called the request too large; then nothing of it was sent downstream.
    held: HeldResponse | None = None
    # The error in place of a follow-up.
    failed: FailedFollowUp | None = None
