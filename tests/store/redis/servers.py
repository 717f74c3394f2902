"""Stores at a real Redis, for tests: one server, and stores as several processes have them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from gateway.store import Store
from gateway.store.keys import make_key, make_tag
from gateway.store.redis.address import Address, parse_address
from gateway.store.redis.store import RedisStore
from tests.toy.redis_server import RedisServer, running_redis
from tests.toy.slow_proxy import SlowProxy, running_proxy

Opened = TypeVar("Opened", bound=Store)
TAG = make_tag("tenant")


def key(kind: str, name: object, owner: str = "tenant") -> str:
    return make_key(make_tag(owner), kind, str(name))


def impatient(port: int, timeout_ms: int = 40) -> Address:
    return parse_address(f"redis://127.0.0.1:{port}/0?timeout_ms={timeout_ms}")


@dataclass(frozen=True)
class Setting:
    """Two processes at one server; what `near` sends passes through the proxy."""

    server: RedisServer
    proxy: SlowProxy
    near: RedisStore
    far: RedisStore


@asynccontextmanager
async def opened(store: Opened) -> AsyncIterator[Opened]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def two_processes(timeout_ms: int = 10_000) -> AsyncIterator[Setting]:
    """Both are patient, so that a busy machine is not taken for a slow server."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_redis())
        proxy = await stack.enter_async_context(running_proxy(server.port))
        near = await stack.enter_async_context(opened(RedisStore(impatient(proxy.port, timeout_ms))))
        far = await stack.enter_async_context(opened(RedisStore(parse_address(server.patient_url))))
        yield Setting(server, proxy, near, far)
