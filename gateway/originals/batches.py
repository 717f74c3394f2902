"""Messages on their way into the index, some at a time, from a request or from the store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from gateway.conversations.reading import Received
from gateway.originals.archive import unpack
from gateway.originals.index_file import IndexedMessage
from gateway.originals.parts import read_parts
from gateway.originals.removed import Original, RemovedMessages, fingerprint

M = TypeVar("M")

# What is added at once, in some 100 ms, while a search of the same conversation waits.
_BATCH_BYTES: Final = 512 << 10
_BATCH_MESSAGES: Final = 512


class Stay(NamedTuple):
    """How long messages are in the index, in Unix time."""

    time: float
    expires: float


def cut_batches(messages: Sequence[M], measure: Callable[[M], int]) -> Iterator[list[M]]:
    """measure: the bytes of a message. One message may be larger than a batch."""
    batch: list[M] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += measure(message)
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_MESSAGES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def read_kept(
    received: Received, removed: RemovedMessages, some: Sequence[Original], stay: Stay
) -> list[IndexedMessage]:
    """Some messages of a list, from the request that they were archived from."""
    return [_read(removed.format, each, received.raw(each.position), stay) for each in some]


def read_packed(
    packed: Mapping[str, bytes], removed: RemovedMessages, some: Sequence[Original], stay: Stay
) -> list[IndexedMessage]:
    """The same as the store has them, by their digests. What is absent or damaged is left out."""
    messages = []
    for original in some:
        raw = unpack(packed.get(original.digest, b""))
        if raw is not None and fingerprint(removed.owner, raw) == original.digest:
            messages.append(_read(removed.format, original, raw, stay))
    return messages


def _read(format_name: str, original: Original, raw: bytes, stay: Stay) -> IndexedMessage:
    parts = read_parts(format_name, raw, original.origins)
    return IndexedMessage(
        original.position,
        original.digest,
        stay.time,
        stay.expires,
        parts,
        original.link,
        original.link_before,
    )
