"""Is the Redis of the settings there, does it take writes, and will it keep what it is given?"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from gateway.doctor.finding import Diagnosis, blame, note_ok, warn
from gateway.settings import Settings
from gateway.store.redis_address import Address, parse_address
from gateway.store.redis_link import FAILURES, explain, make_client, translate

_CONNECT_SECONDS: Final = 5.0
# Scripts and `SET … NX GET` need it.
_LEAST_VERSION: Final = (7, 0)
_FULL: Final = 0.9


async def examine_redis(settings: Settings) -> list[Diagnosis]:
    """For `redis://` and `rediss://`."""
    address = parse_address(settings.store)
    client = make_client(address, retries=0)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            return [finding async for finding in _examine(client, address)]
    except FAILURES as error:
        return [_blame_connection(address, explain(error).reason)]
    finally:
        await client.aclose()


def _blame_connection(address: Address, reason: str) -> Diagnosis:
    what = f"{address.shown}: {reason}"
    if "user and password" in reason:
        fix = "store: redis://:${REDIS_PASSWORD}@HOST:PORT/0  # as `requirepass` of the server says"
    elif "certificate" in reason:
        fix = "store: rediss://HOST:PORT/0?ca_file=/path/of/ca.pem"
    else:
        fix = f"redis-cli -h {address.host} -p {address.port} ping  # start it, or correct `store`"
    return blame(what, fix)


async def _examine(client: Redis, address: Address) -> AsyncIterator[Diagnosis]:
    """Raises one of FAILURES."""
    await client.ping()
    started = time.monotonic()
    try:
        # A key of its own, so that several may do this at once; it is gone in a second.
        await client.set(f"{address.prefix}:doctor:{os.getpid()}", "1", px=1_000)
    except ResponseError as error:
        what = f"{address.shown} takes no writes: {translate(error).reason}"
        yield blame(what, "redis-cli info  # memory, role and disk; or another user in `store`")
        return
    taken_ms = round((time.monotonic() - started) * 1_000)
    facts = await _ask_facts(client)
    version = facts.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers and numbers < _LEAST_VERSION:
        yield warn(f"{address.shown} is Redis {version}", "upgrade it to Redis 7 or newer, or Valkey")
    else:
        yield note_ok(f"{address.shown} answers{f', version {version}' if version else ''}")
    if taken_ms > address.timeout_ms:
        what = f"it took {taken_ms} ms for one write, and timeout_ms is {address.timeout_ms}"
        yield warn(what, f"store: redis://HOST:PORT/0?timeout_ms={min(1_000, 2 * taken_ms)}")
    policy = facts.get("maxmemory_policy", "")
    if policy.startswith("allkeys"):
        what = f"maxmemory-policy is {policy}: it may evict records that are in use"
        yield warn(what, "redis-cli config set maxmemory-policy volatile-lru")
    most, used = int(facts.get("maxmemory", "0")), int(facts.get("used_memory", "0"))
    if most and used > _FULL * most:
        what = f"{used >> 20:,} of {most >> 20:,} MB of its memory are used"
        yield warn(what, f"redis-cli config set maxmemory {2 * most}")


async def _ask_facts(client: Redis) -> dict[str, str]:
    """The lines `name:value` of INFO; empty if it is refused, as by some hosted servers."""
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command("INFO")
    try:
        (reply,) = await pipeline.execute()
    except ResponseError:
        return {}
    pairs = (line.partition(":") for line in reply.decode("utf-8", "replace").splitlines())
    return {name: value.strip() for name, _, value in pairs}
