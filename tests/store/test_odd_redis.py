"""A server at the address of the store that answers anything: shifted and foreign replies, wrong types.

Nothing is read that was not written for its key, nothing but a StoreError is raised, and nothing ends that
has to go on.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from gateway.quotas.meter import Rate
from gateway.quotas.redis import make_redis_backend
from gateway.store.errors import StoreError
from gateway.store.keys import make_key, make_tag
from gateway.store.leases import Held, Lease
from gateway.store.record import render_record
from gateway.store.redis.address import parse_address
from gateway.store.redis.bounded import BoundedRedisStore
from gateway.store.redis.store import RedisStore

_OWN, _OTHER = make_tag("tenant:own"), make_tag("tenant:other")
_ROUNDS = 40


def _key(kind: str, name: str) -> str:
    return make_key(_OWN, kind, name)


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


def _list(*items: bytes) -> bytes:
    return b"*%d\r\n" % len(items) + b"".join(items)


_FOREIGN = render_record(make_key(_OTHER, "head", "1"), b"canary")
_MOVED = render_record(_key("head", "2"), b"canary")
_NUMBERS = (b":0\r\n", b":1\r\n", b":-1\r\n", b":7\r\n", b":%d\r\n" % 10**30)
_HOLDERS = (b"5:ab", b"x", b"9" * 5_000 + b":ab", b"")
_REPLIES: Sequence[bytes] = (
    *(
        b"+OK\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"-ERR no\r\n",
        b"-NOSCRIPT no\r\n",
        b"-WRONGTYPE no\r\n",
        *_NUMBERS,
    ),
    *(_bulk(_FOREIGN), _bulk(_MOVED), _bulk(b""), _bulk(b"\xff\xfe")),
    *(
        _list(b":%d\r\n" % at, _bulk(record), b":0\r\n")
        for at in (-3, 0, 1, 99)
        for record in (_FOREIGN, _MOVED)
    ),
    *(_list(b":0\r\n", b":%d\r\n" % at, _bulk(text), b":-5\r\n") for at in (0, 1, 9) for text in _HOLDERS),
    *(_list(b":1\r\n", _bulk(text)) for text in _HOLDERS),
    _list(_bulk(b"0"), _list(_bulk(b"\xff\xfe"), _bulk(b"1"))),
    _list(_bulk(b"\xff\xfe"), _bulk(b"\x80")),
)
_MISSED = b"x missed"
_MESSAGES = (
    _MISSED,
    _MISSED,
    _MISSED,
    b"x release k " + b"9" * 5_000,
    b"x change t pivot zz",
    b"\xff\xff",
    b"",
)


@asynccontextmanager
async def _odd_server(seed: int) -> AsyncIterator[str]:
    """Its URL. It answers what opens a connection, and everything else with one of the replies above."""
    drawn = random.Random(seed)

    def reply(words: Sequence[bytes]) -> bytes:
        match words[0]:
            case b"SELECT" | b"CLIENT":
                return b"+OK\r\n"
            case b"SUBSCRIBE":
                return _list(_bulk(b"subscribe"), _bulk(words[1]), b":1\r\n")
            case b"SET" if words[1].endswith(b"epoch"):
                return _bulk(b"epoch")
            case b"PING":
                return _list(_bulk(b"message"), _bulk(b"c"), _bulk(drawn.choice(_MESSAGES)))
            case _:
                return drawn.choice(_REPLIES)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                writer.write(reply(words))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"redis://127.0.0.1:{port}/0?timeout_ms=10000"


def _list_calls(store: RedisStore, bounded: BoundedRedisStore) -> Sequence[Callable[[], Awaitable[object]]]:
    quotas, lease = make_redis_backend(store), Lease(_key("lease", "1"), 5)

    async def claim() -> None:
        held = await store.leases.claim(lease.key, [_key("lease", "2")], keep_seconds=6)
        if isinstance(held, Held):
            await store.leases.wait(held._replace(seconds_left=0.001))

    return (
        lambda: store.read_groups([[_key("head", "1"), _key("head", "3")], [_key("head", "4")]]),
        lambda: store.scan(_key("report", "1:")),
        lambda: store.scan(_key("report", "")),
        lambda: store.take(_key("marker", "1")),
        lambda: store.write_new(_key("pivot", "1"), b"v", keep_seconds=60),
        lambda: store.write_durably(_key("pivot", "2"), b"v", keep_seconds=60),
        lambda: store.leases.renew(lease, keep_seconds=6),
        lambda: store.leases.write(lease, _key("pivot", "3"), b"v", keep_seconds=60),
        lambda: store.leases.release(lease),
        lambda: quotas.meter.count(Rate(_key("quota", "1"), 5, 60)),
        lambda: quotas.places.take(_key("quota", "2"), "member", 1),
        lambda: store.purge(_OTHER),
        lambda: bounded.purge(_OTHER),
        lambda: bounded.write_durably(_key("original", "1:1"), b"x" * 400, keep_seconds=60),
        claim,
    )


@pytest.mark.parametrize("seed", range(3))
async def test_odd_replies_are_taken_for_nothing(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with _odd_server(seed) as url:
        store = RedisStore(parse_address(url))
        bounded = BoundedRedisStore(parse_address(url), "originals", 500)
        await store.open()
        await bounded.open()
        for _ in range(_ROUNDS):
            calls = [call() for call in _list_calls(store, bounded)]
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert not isinstance(result, BaseException) or isinstance(result, StoreError), repr(result)
                assert b"canary" not in repr(result).encode()
        # The connection for news still listens: each of its pings brings a message.
        generation = store.news.generation
        async with asyncio.timeout(60):
            while store.news.generation == generation:
                await asyncio.sleep(0.01)
        await bounded.close()
        await store.close()
    assert not [record for record in caplog.records if record.name == "asyncio"]
