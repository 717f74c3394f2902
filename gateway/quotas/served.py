"""What tenants use, counted by the supervisor for all of its workers, where the store is not Redis.

Each call is a few bytes to the supervisor and back. Knows nothing of how they travel.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeVar, runtime_checkable

import msgspec
from limits.aio.storage import MemoryStorage

from gateway.quotas.ledger import Backend
from gateway.quotas.meter import RateMeter
from gateway.quotas.places import KEEP_SECONDS, LocalPlaces
from gateway.quotas.window_storage import WindowStorage
from gateway.store import StoreError

# Raises StoreError if the supervisor is away.
Ask = Callable[[bytes], Awaitable[bytes]]
_Members = dict[str, list[str]]
T = TypeVar("T")
SERVICE: Final = "quotas"


@runtime_checkable
class SupervisedStore(Protocol):
    """The store of a worker, through which it reaches what its supervisor does for all workers."""

    async def ask(self, service: str, request: bytes) -> bytes:
        """Raises StoreError."""


class CountUse(msgspec.Struct, tag="count", array_like=True):
    key: str
    most: int
    seconds: int
    cost: int


class ReadWindow(msgspec.Struct, tag="window", array_like=True):
    key: str
    seconds: int


class TakePlace(msgspec.Struct, tag="take", array_like=True):
    key: str
    member: str
    most: int


class RenewPlaces(msgspec.Struct, tag="renew", array_like=True):
    members: _Members


class GiveBackPlaces(msgspec.Struct, tag="give back", array_like=True):
    members: _Members


_Call = CountUse | ReadWindow | TakePlace | RenewPlaces | GiveBackPlaces
_encode = msgspec.msgpack.encode
_decode_call = msgspec.msgpack.Decoder(_Call).decode


class QuotaServer:
    """In the supervisor. Its places are freed if a worker dies."""

    def __init__(self) -> None:
        self._storage = MemoryStorage()
        self._places = LocalPlaces(KEEP_SECONDS)

    async def answer(self, request: bytes) -> bytes:
        return _encode(await self._answer(_decode_call(request)))

    async def _answer(self, call: _Call) -> object:
        match call:
            case CountUse(key, most, seconds, cost):
                return await self._storage.acquire_sliding_window_entry(key, most, seconds, cost)
            case ReadWindow(key, seconds):
                return await self._storage.get_sliding_window(key, seconds)
            case TakePlace(key, member, most):
                return await self._places.take(key, member, most)
            case RenewPlaces(members):
                await self._places.renew(members)
            case GiveBackPlaces(members):
                await self._places.give_back(members)
        return None


def make_served_backend(ask: Ask) -> Backend:
    """In a worker."""
    return Backend(RateMeter(ServedStorage(ask)), ServedPlaces(ask))


class ServedStorage(WindowStorage):
    """The counters of the supervisor."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self._ask = ask

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        return _decode(await self._ask(_encode(CountUse(key, limit, expiry, amount))), bool)

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        return _decode(await self._ask(_encode(ReadWindow(key, expiry))), tuple[int, float, int, float])


class ServedPlaces:
    """The places of the supervisor."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def take(self, key: str, member: str, most: int) -> bool:
        return _decode(await self._ask(_encode(TakePlace(key, member, most))), bool)

    async def renew(self, members: Mapping[str, Sequence[str]]) -> None:
        await self._ask(_encode(RenewPlaces(_plain(members))))

    async def give_back(self, members: Mapping[str, Sequence[str]]) -> None:
        await self._ask(_encode(GiveBackPlaces(_plain(members))))


def _decode(reply: bytes, kind: type[T]) -> T:
    """Raises StoreError for the reply of a supervisor that knows no such call."""
    try:
        return msgspec.msgpack.decode(reply, type=kind)
    except msgspec.DecodeError:
        raise StoreError("the supervisor's reply is not understood") from None


def _plain(members: Mapping[str, Sequence[str]]) -> _Members:
    return {key: list(found) for key, found in members.items()}
