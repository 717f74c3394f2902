"""What is known of one request: filled on its way by whoever knows something, read once when it has ended.

Its log line, metrics and the attributes of its span are made of it. It holds no content. Times are of
`time.monotonic()`, and most of them are taken by others anyway.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from gateway.core.sizing.usage import Usage

# The plan of a request that the gateway has not read, and of one that no upstream was asked for.
RELAYED_PLAN: Final = "relayed"
LOCAL_PLAN: Final = "local"
# Plans that send less than the whole conversation.
_COMPACTED: Final = frozenset({"pivot", "pivot+pruned", "digest", "pruned", "cut"})

# Upstreams choose the word; this much of it is sent.
_REASON_CHARS: Final = 128

# None: not known, or not applicable.
LogValue = str | int | float | None
Fact = str | bool | int | float | Sequence[str] | None


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

    def end(self, status: int) -> None:
        """status: 0 if nothing was sent to the client."""
        self.status, self.ended_seconds = status, time.monotonic()

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

    def list_log_fields(self) -> dict[str, str | int | float]:
        """What its log line says, in this order."""
        found = {name: read(self) for name, read in _LOG_FIELDS.items()}
        return {name: value for name, value in found.items() if value is not None}

    def list_facts(self) -> dict[str, Fact]:
        """What its span says, by the words of `gateway.traces`."""
        table = {**_FACTS, **_FACTS_FOLLOWED} if self.is_followed else _FACTS
        return {word: read(self) for word, read in table.items()}


def _round(seconds: float | None, digits: int = 3) -> float | None:
    return None if seconds is None else round(seconds, digits)


def _of(usage: Usage | None, field: str) -> int | None:
    count: int | None = getattr(usage, field, None)
    return count


_LOG_FIELDS: Final[Mapping[str, Callable[[Answered], LogValue]]] = {
    "status": lambda it: it.status or "-",
    "plan": lambda it: it.plan_name,
    "more": lambda it: ascii(it.more) if it.more else None,
    "conversation": lambda it: it.conversation or None,
    "upstream": lambda it: it.upstream,
    "received": lambda it: it.received if it.is_followed else None,
    "sent": lambda it: it.sent if it.is_followed else None,
    "bytes": lambda it: it.body_bytes if it.is_followed else None,
    "prompt_tokens": lambda it: _of(it.usage, "prompt_tokens"),
    "cached_tokens": lambda it: _of(it.usage, "cached_tokens"),
    "cache_write_tokens": lambda it: _of(it.usage, "cache_write_tokens"),
    "output_tokens": lambda it: _of(it.usage, "output_tokens"),
    "seconds": lambda it: _round(it.ended_seconds - it.begun_seconds),
    "own_seconds": lambda it: _round(it.own_seconds, 6),
    "first_byte_seconds": lambda it: _round(it.first_byte_seconds),
    "upstream_seconds": lambda it: _round(it.upstream_seconds) if it.upstream is not None else None,
    "waited_seconds": lambda it: _round(it.waited_seconds) if it.waited_seconds else None,
}
_FACTS: Final[Mapping[str, Callable[[Answered], Fact]]] = {
    "format": lambda it: it.format,
    "plan": lambda it: it.plan_name,
    "upstream": lambda it: it.upstream,
    "compacted": lambda it: it.plan_name in _COMPACTED or None,
    "status": lambda it: it.status or None,
    "input_tokens": lambda it: _of(it.usage, "prompt_tokens"),
    "output_tokens": lambda it: _of(it.usage, "output_tokens"),
    "cached_tokens": lambda it: _of(it.usage, "cached_tokens"),
    "cache_write_tokens": lambda it: _of(it.usage, "cache_write_tokens"),
    "finish_reasons": lambda it: (
        (it.finish_reason[:_REASON_CHARS],) if it.finish_reason is not None else None
    ),
    "response_model": lambda it: it.response_model,
    "response_id": lambda it: it.response_id,
    "first_byte_seconds": lambda it: it.first_byte_seconds,
    "own_seconds": lambda it: it.own_seconds,
    "waited_seconds": lambda it: it.waited_seconds or None,
}
_FACTS_FOLLOWED: Final[Mapping[str, Callable[[Answered], Fact]]] = {
    "operation": lambda _: "chat",
    "conversation": lambda it: it.conversation,
    "tenant": lambda it: it.tenant,
    "request_model": lambda it: it.model,
    "requested_tokens": lambda it: it.requested_tokens,
    "is_streaming": lambda it: it.is_streaming or None,
    "received": lambda it: it.received,
    "sent": lambda it: it.sent,
}
