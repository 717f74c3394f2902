"""What a worker asks of the process that serves its store, and what that answers.

Each message holds all calls, or all replies, of one moment. `number` ties a reply to its call and is never
used twice; what has none is not answered. `place` says which of the stores is meant.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

StoreName = Literal["main", "originals", "named"]


class _Positional(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class ReadCall(_Positional, frozen=True):
    number: int
    place: StoreName
    groups: Sequence[Sequence[str]]


class ScanCall(_Positional, frozen=True):
    number: int
    place: StoreName
    prefix: str


class TakeCall(_Positional, frozen=True):
    number: int
    place: StoreName
    key: str


class WriteCall(_Positional, frozen=True):
    place: StoreName
    key: str
    value: bytes
    keep_seconds: float


class DeleteCall(_Positional, frozen=True):
    place: StoreName
    key: str


class DurableCall(_Positional, frozen=True):
    """is_new: what is stored under the key already stays."""

    number: int
    place: StoreName
    key: str
    value: bytes
    keep_seconds: float
    is_new: bool


class PurgeCall(_Positional, frozen=True):
    number: int
    place: StoreName
    tag: str


class BarrierCall(_Positional, frozen=True):
    """Answered when everything before it is with the store."""

    number: int


class ClaimCall(_Positional, frozen=True):
    number: int
    key: str
    rivals: Sequence[str]
    keep_seconds: float


class RenewCall(_Positional, frozen=True):
    number: int
    key: str
    fence: int
    keep_seconds: float


class LeasedCall(_Positional, frozen=True):
    """A durable write under a lease."""

    number: int
    lease_key: str
    fence: int
    key: str
    value: bytes
    keep_seconds: float


class ReleaseCall(_Positional, frozen=True):
    key: str
    fence: int


class WaitCall(_Positional, frozen=True):
    """Answered when the lease is not held any more."""

    number: int
    key: str
    fence: int


class AnnounceCall(_Positional, frozen=True):
    owner_tag: str
    text: str


class ServiceCall(_Positional, frozen=True):
    """For what else the serving process does for all workers. Both ends know what the bytes mean."""

    number: int
    service: str
    request: bytes


class RecordsReply(_Positional, frozen=True):
    number: int
    records: Sequence[tuple[str, bytes] | None]


class ValueReply(_Positional, frozen=True):
    number: int
    value: bytes | None


class NumberReply(_Positional, frozen=True):
    """Of a claim: the fence. Of a question: 1 for yes, 0 for no."""

    number: int
    result: int


class HeldReply(_Positional, frozen=True):
    number: int
    key: str
    fence: int
    seconds_left: float


class RefusedReply(_Positional, frozen=True):
    """A StoreError. kind: the name of its class."""

    number: int
    kind: str
    text: str


class NewsReply(_Positional, frozen=True):
    """What another worker has announced. It answers no call."""

    owner_tag: str
    text: str


Asking = (
    ReadCall
    | ScanCall
    | TakeCall
    | DurableCall
    | PurgeCall
    | BarrierCall
    | ClaimCall
    | RenewCall
    | LeasedCall
    | WaitCall
    | ServiceCall
)
Telling = WriteCall | DeleteCall | ReleaseCall | AnnounceCall
StoreCall = Asking | Telling
StoreAnswer = RecordsReply | ValueReply | NumberReply | HeldReply | RefusedReply
StoreReply = StoreAnswer | NewsReply

_encoder: Final = msgspec.msgpack.Encoder()
_calls: Final = msgspec.msgpack.Decoder(list[StoreCall])
_replies: Final = msgspec.msgpack.Decoder(list[StoreReply])


def render_messages(messages: Sequence[StoreCall] | Sequence[StoreReply]) -> bytes:
    return _encoder.encode(messages)


def parse_calls(data: bytes) -> list[StoreCall]:
    """Raises msgspec.MsgspecError for what no worker sends."""
    calls: list[StoreCall] = _calls.decode(data)
    return calls


def parse_replies(data: bytes) -> list[StoreReply]:
    """Raises msgspec.MsgspecError for what no server sends."""
    replies: list[StoreReply] = _replies.decode(data)
    return replies
