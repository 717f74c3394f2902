"""Asks an upstream for the vectors of texts (`/v1/embeddings`). The texts go nowhere else.

A vector is the bytes of its numbers, 32 bits each. What fails is None: a search goes without.
"""

import asyncio
import logging
import math
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.headers import make_upstream_headers
from gateway.http.client import Client, OwnCall
from gateway.http.failures import CALL_ERRORS
from gateway.http.target import make_url
from gateway.settings import UpstreamSettings

log = logging.getLogger("gateway.search")

# Far above what any model returns.
_MOST_NUMBERS: Final = 16_384
_OK: Final = 200
_PATH: Final = "/embeddings"
# A batch of the longest vectors, written as text.
_MOST_BYTES: Final = 64 << 20


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_Vector]


class Embedder:
    def __init__(self, client: Client, upstream: UpstreamSettings, model: str) -> None:
        """client: for calls of our own."""
        self._client = client
        self._upstream = upstream
        self._model = model
        self._has_warned = False

    @property
    def name(self) -> str:
        """Vectors of another name are of no use."""
        return f"{self._upstream.name} {self._model}"

    async def embed(self, texts: Sequence[str], longest_seconds: float) -> list[bytes] | None:
        """As many as texts, in their order, all of one length; None if the upstream fails or is late."""
        try:
            found = await self._client.fetch(self._make_call(texts), longest_seconds, _MOST_BYTES)
            vectors, why = None, f"status {found.status}"
            if found.status == _OK and found.body is not None:
                # A batch has some hundred thousand numbers, which takes tens of milliseconds.
                vectors = await asyncio.to_thread(_read_vectors, found.body, len(texts))
        except CALL_ERRORS as error:
            vectors, why = None, type(error).__name__
        if vectors is None and not self._has_warned:
            log.warning("no embeddings, search goes by words: %s; further cases are not logged", why)
        self._has_warned = vectors is None
        return vectors

    def _make_call(self, texts: Sequence[str]) -> OwnCall:
        upstream = self._upstream
        headers = [*make_upstream_headers((), upstream, _PATH).items(), ("Content-Type", "application/json")]
        body = msgspec.json.encode({"model": self._model, "input": texts})
        return OwnCall(upstream, "POST", str(make_url(upstream, _PATH)), headers, body)


def _read_vectors(body: bytes, count: int) -> list[bytes] | None:
    """None if they are not what was asked for."""
    try:
        found = msgspec.json.decode(body, type=_Answer).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    by_place = {each.index: each.embedding for each in found}
    lengths = {len(numbers) for numbers in by_place.values()}
    if by_place.keys() != set(range(count)) or len(lengths) > 1 or not lengths <= {*range(1, _MOST_NUMBERS)}:
        return None
    packed = [array("f", by_place[at]) for at in range(count)]
    is_finite = all(math.isfinite(number) for numbers in packed for number in numbers)
    return [numbers.tobytes() for numbers in packed] if is_finite else None
