"""A server that answers anything at all, and connections that are lost at any moment: no value is ever taken
for that of another key, and nothing but the errors of a store comes of it.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.store.address import make_store
from gateway.store.interface import HeldLease, Key, Lease, Lookup, Store, StoreError, seal
from gateway.store.keys import make_tag
from tests.examples import examples
from tests.store.backends import Heard
from tests.store.test_redis_store import Place, opened_place
from tests.toy.redis_server import requires_redis

_OWN, _OTHER = make_tag("tenant:own"), make_tag("tenant:other")
_ROUNDS: Final = 20


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


def _list(*items: bytes) -> bytes:
    return b"*%d\r\n" % len(items) + b"".join(items)


_FOREIGN = seal(Key(_OTHER, "head", "1"), b"\ncanary")
_MOVED = seal(Key(_OWN, "head", "2"), b"\ncanary")
_NUMBERS = (b":0\r\n", b":1\r\n", b":-1\r\n", b":7\r\n", b":%d\r\n" % 10**30)
_FENCES = (b"5", b"x", b"9" * 5_000, b"", b"\xff")
_PURGES = _list(_bulk(b"\xff \xff"), _bulk(b"9" * 5_000), _bulk(b""), _bulk(b"x"), _bulk(b"odd"))
_REPLIES: Final = (
    *(b"+OK\r\n", b"$-1\r\n", b"*-1\r\n", b"-ERR no\r\n", b"-NOSCRIPT no\r\n", b"-WRONGTYPE no\r\n"),
    *_NUMBERS,
    *(_bulk(_FOREIGN), _bulk(_MOVED), _bulk(b""), _bulk(b"\xff\xfe")),
    *(
        # Of a look-up, a batch, and a page of a list.
        _list(_list(_list(b":%d\r\n" % at, _bulk(text)), _list(b":%d\r\n" % at, _bulk(text))), b":0\r\n")
        for at in (-3, 0, 1, 99)
        for text in (_FOREIGN, _MOVED)
    ),
    *(_list(_list(*([item] * count)), _PURGES) for item in (_bulk(_MOVED), b":7\r\n") for count in (1, 3)),
    _list(_bulk(b"0"), _list(_bulk(b"\xff\xfe"), _bulk(b"1"))),
    _list(_bulk(b"0"), _list(_bulk(b"head:%s:3" % _OWN.encode()))),
    _list(_bulk(_MOVED)),
    # Of a claim, of a count, of a purge.
    *(_list(b":%d\r\n" % granted, _bulk(text), b":-5\r\n") for granted in (0, 1, 9) for text in _FENCES),
    *(_list(b":0\r\n", *([_bulk(text)] * 4)) for text in (*_FENCES, b"nan", b"inf")),
    *(_list(number, number, _PURGES) for number in _NUMBERS[:1]),
)
_MISSED: Final = (
    b"x " + b"t " * 5_000,
    b"x t !freed " + b"9" * 5_000 + b" n",
    b"x t !freed",
    b"x !purged",
    b"\xff\xff",
    b"",
)


def _reply(words: Sequence[bytes], drawn: random.Random) -> bytes:
    """What opens a connection is answered as by a server, and so is what asks whether it is there."""
    match words[0]:
        case b"SELECT" | b"CLIENT":
            return b"+OK\r\n"
        case b"SUBSCRIBE":
            return _list(_bulk(b"subscribe"), _bulk(words[1]), b":1\r\n")
        case b"PING":
            return _list(_bulk(b"message"), _bulk(b"c"), _bulk(drawn.choice(_MISSED)))
        case b"EVALSHA" if len(words) == 6 and len(words[4]) == 16 and words[5].isdigit():
            # The check: epoch, number of the newest purge.
            return _list(_bulk(b"epoch"), _bulk(b"5"), _list())
        case _:
            return drawn.choice(_REPLIES)


@asynccontextmanager
async def _odd_server(seed: int) -> AsyncIterator[str]:
    """Its URL."""
    drawn = random.Random(seed)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                writer.write(_reply(words, drawn))
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0?timeout_ms=10000"


def _list_calls(store: Store) -> Sequence[Callable[[], Awaitable[object]]]:
    lease = Lease(_OWN, "1", 5)
    pivot = Key(_OWN, "pivot", "1")

    async def claim() -> None:
        held = await store.claim(_OWN, "1", ttl=6, wait=0.2)
        if isinstance(held, HeldLease):
            await store.until_free(replace(held, seconds_left=0.001))

    return (
        lambda: store.get(_OWN, [Lookup("head", ["1", "3"]), Lookup("head", ["4"])], wait=0.2),
        lambda: store.list("head", _OWN, wait=0.2),
        lambda: store.list("head", wait=0.2),
        lambda: store.take(Key(_OWN, "marker", "1"), wait=0.2),
        lambda: store.put_durable(pivot, b"v", 60, if_absent=True, wait=0.2),
        lambda: store.put_durable(pivot, b"v", 60, lease=lease, wait=0.2),
        lambda: store.renew(lease, ttl=6),
        lambda: store.count(_OWN, "calls", 1, 5, 60),
        lambda: store.hold(_OWN, "places", "member", 1, 15),
        lambda: store.delete(_OTHER),
        claim,
    )


@pytest.mark.parametrize("seed", range(3))
async def test_odd_replies_are_taken_for_nothing(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with _odd_server(seed) as url:
        store, heard = make_store(url), Heard()
        store.subscribe(heard)
        await store.open()
        for _ in range(_ROUNDS):
            calls = [call() for call in _list_calls(store)]
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert not isinstance(result, BaseException) or isinstance(result, StoreError), repr(result)
                assert b"canary" not in repr(result).encode()
        await store.close()
    assert not [record for record in caplog.records if record.name == "asyncio"]


# Keys of two tenants with equal names: the value says whose it is.
_KEYS: Final = [Key(tag, "head", str(number)) for tag in (_OWN, _OTHER) for number in range(6)]
_STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, len(_KEYS) - 1), min_size=1, max_size=4),
        st.sampled_from(["read", "cancel at once", "cancel later", "write", "cut", "stall"]),
    ),
    min_size=1,
    max_size=30,
)


def _value_of(key: Key) -> bytes:
    return f"{key.tag} {key.name}".encode()


@requires_redis
@examples(5, exhaustive=100)
@given(steps=_STEPS, seed=st.integers(0, 1 << 16))
def test_no_value_is_ever_returned_for_a_wrong_key(steps: list[tuple[list[int], str]], seed: int) -> None:
    asyncio.run(_interleave(steps, random.Random(seed)))


async def _interleave(steps: list[tuple[list[int], str]], drawn: random.Random) -> None:
    async with opened_place(100) as place:
        for key in _KEYS[::2]:
            await place.far.store.put_durable(key, _value_of(key), 60)
        tasks = [_step(place, [_KEYS[at] for at in places], verb, drawn) for places, verb in steps]
        await asyncio.gather(*tasks)
        place.proxy.delay_seconds = 0
        await place.proxy.cut()
        for key in _KEYS[::2]:
            await place.near.until_read(key, _value_of(key))


async def _step(place: Place, keys: Sequence[Key], verb: str, drawn: random.Random) -> None:
    await asyncio.sleep(drawn.random() / 100)
    match verb:
        case "write":
            for key in keys:
                place.near.store.put(key, _value_of(key), 60)
        case "cut":
            await place.proxy.cut()
        case "stall":
            place.proxy.stall()
            await asyncio.sleep(0.01)
            place.proxy.delay_seconds = 0
        case _:
            await _read(place.near.store, keys, verb, drawn)


async def _read(store: Store, keys: Sequence[Key], verb: str, drawn: random.Random) -> None:
    tag = keys[0].tag
    lookups = [Lookup(key.kind, [key.name]) for key in keys]
    reading = asyncio.create_task(store.get(tag, lookups))
    if verb != "read":
        await asyncio.sleep(0 if verb == "cancel at once" else drawn.random() / 500)
        reading.cancel()
    (found,) = await asyncio.gather(reading, return_exceptions=True)
    if isinstance(found, list):
        assert all(each is None or each.value == f"{tag} {each.name}".encode() for each in found)
    else:
        assert isinstance(found, StoreError | asyncio.CancelledError)
