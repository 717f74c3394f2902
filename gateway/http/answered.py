"""What is known of one request: filled on its way by whoever knows something, read once when it has ended.

Its log line, its metrics and its span are made of it elsewhere. It holds no content. Times are of
`time.monotonic()`, and most of them are taken by others anyway.
"""

import time
from typing import Final

import msgspec

from gateway.core.sizing.usage import Usage

# The plan of a request that the gateway has not read, and of one that no upstream was asked for.
RELAYED_PLAN: Final = "relayed"
LOCAL_PLAN: Final = "local"


class Answered(msgspec.Struct):
    """Mutable until `end`. Times are in seconds."""

    begun_seconds: float = msgspec.field(default_factory=time.monotonic)
    # When the whole body was there; 0 if it was not waited for. A slow upload is not the gateway's time.
    read_seconds: float = 0.0
    ended_seconds: float = 0.0
    # Of the response; 0 if nothing was sent to the client.
    status: int = 0
    # The wire format of the body; `other` if it was not read.
    format: str = "other"
    plan: str = RELAYED_PLAN
    # What else the log says.
    more: str = ""
    # The upstream that was asked, by its name in the settings; None if none was.
    upstream: str | None = None
    # Of a request that is followed: whose it is, what it asks for, and the upstream it belongs to.
    conversation: str = ""
    tenant: str = ""
    model: str = ""
    chosen_upstream: str = ""
    base_url: str = ""
    requested_tokens: int | None = None
    is_streaming: bool = False
    # Estimated tokens of what came and of what was sent; bytes of the body as received.
    received: int = 0
    sent: int = 0
    body_bytes: int = 0
    usage: Usage | None = None
    finish_reason: str | None = None
    # What the response says of itself; read only where traces are on.
    response_model: str | None = None
    response_id: str | None = None
    # From sending the request to the head of the response. Of several tries the last one counts.
    first_byte_seconds: float | None = None
    # From sending to the last byte, of all tries together.
    upstream_seconds: float = 0.0
    # Spent on waiting for a compaction, and for a client that does not read.
    waited_seconds: float = 0.0
    client_seconds: float = 0.0

    def add_exchange(
        self, upstream: str, begun_seconds: float, head_seconds: float | None, last_seconds: float
    ) -> None:
        """A request that was sent, the head of its response (None: none came), and the last sign of life."""
        self.upstream = upstream
        self.upstream_seconds += last_seconds - begun_seconds
        if head_seconds is not None:
            self.first_byte_seconds = head_seconds - begun_seconds

    def end(self, status: int, read_seconds: float) -> None:
        """status: 0 if nothing was sent to the client."""
        self.status, self.read_seconds, self.ended_seconds = status, read_seconds, time.monotonic()

    @property
    def is_followed(self) -> bool:
        return bool(self.conversation)

    @property
    def plan_name(self) -> str:
        return self.plan if self.upstream is not None else LOCAL_PLAN

    @property
    def own_seconds(self) -> float:
        """The time that was neither the upstream's, nor a summary's, nor the client's."""
        others = self.upstream_seconds + self.waited_seconds + self.client_seconds
        return max(0.0, self.ended_seconds - (self.read_seconds or self.begun_seconds) - others)
