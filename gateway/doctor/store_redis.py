"""Is the Redis of the settings there, does it take writes, and will it keep what it is given?"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.doctor.finding import Diagnosis, blame, note_ok, warn
from gateway.settings import Settings
from gateway.store.redis_address import Address, parse_address
from gateway.store.redis_link import FAILURES, ServerReply, explain, make_client, translate

_SUBJECT: Final = "store"
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
            return list(await _examine(client, address))
    except FAILURES as error:
        return [_blame_connection(address, explain(error).reason)]
    finally:
        await client.aclose()


def _blame_connection(address: Address, reason: str) -> Diagnosis:
    what = f"{address.shown}: {reason}"
    if "user and password" in reason:
        return blame(
            _SUBJECT,
            what,
            "store: redis://:${REDIS_PASSWORD}@HOST:PORT/0  # as `requirepass` of the server says",
        )
    if "certificate" in reason:
        return blame(_SUBJECT, what, "store: rediss://HOST:PORT/0?ca_file=/path/of/ca.pem")
    return blame(
        _SUBJECT, what, f"redis-cli -h {address.host} -p {address.port} ping  # start it, or correct `store`"
    )


async def _examine(client: Redis, address: Address) -> Iterator[Diagnosis]:
    """Raises one of FAILURES."""
    await client.ping()
    started = time.monotonic()
    # A key of its own, so that several may do this at once; it is gone in a second.
    key = f"{address.prefix}:doctor:{os.getpid()}"
    (written,) = await _ask(client, ("SET", key, "1", "PX", "1000"))
    seconds = time.monotonic() - started
    facts = await _ask(client, ("INFO", "server"), ("INFO", "memory"), ("CONFIG", "GET", "maxmemory-policy"))
    return _describe(address, written, seconds, facts)


async def _ask(client: Redis, *commands: Sequence[str]) -> list[ServerReply]:
    """In one round trip; a refusal is a value. Raises one of FAILURES."""
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return list(await pipeline.execute(raise_on_error=False))


def _describe(
    address: Address, written: ServerReply, seconds: float, replies: list[ServerReply]
) -> Iterator[Diagnosis]:
    if isinstance(written, RedisError):
        what = f"{address.shown} takes no writes: {translate(written).value}"
        yield blame(_SUBJECT, what, "redis-cli info  # memory, role and disk; or another user in `store`")
        return
    facts = _parse_info(replies[0]) | _parse_info(replies[1])
    yield from _examine_version(address, facts.get("redis_version", ""))
    yield from _examine_delay(address, seconds)
    yield from _examine_memory(facts, replies[2])


def _examine_version(address: Address, version: str) -> Iterator[Diagnosis]:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers and numbers < _LEAST_VERSION:
        yield warn(
            _SUBJECT, f"{address.shown} is Redis {version}", "upgrade it to Redis 7 or newer, or Valkey"
        )
    else:
        yield note_ok(_SUBJECT, f"{address.shown} answers{f', version {version}' if version else ''}")


def _examine_delay(address: Address, seconds: float) -> Iterator[Diagnosis]:
    if seconds * 1000 > address.timeout_ms:
        taken = round(seconds * 1000)
        what = f"it took {taken} ms for one write, and timeout_ms is {address.timeout_ms}"
        yield warn(_SUBJECT, what, f"store: redis://HOST:PORT/0?timeout_ms={min(1000, 2 * taken)}")


def _examine_memory(facts: dict[str, str], reply: ServerReply) -> Iterator[Diagnosis]:
    policy = _read_policy(reply)
    if policy.startswith("allkeys"):
        what = f"maxmemory-policy is {policy}: it may evict records that are in use"
        yield warn(_SUBJECT, what, "redis-cli config set maxmemory-policy volatile-lru")
    most, used = int(facts.get("maxmemory", "0")), int(facts.get("used_memory", "0"))
    if most and used > _FULL * most:
        what = f"{used >> 20:,} of {most >> 20:,} MB of its memory are used"
        yield warn(_SUBJECT, what, f"redis-cli config set maxmemory {2 * most}")


def _parse_info(reply: ServerReply) -> dict[str, str]:
    """The lines `name:value` of INFO; empty if it was refused."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else ""
    pairs = (line.partition(":") for line in text.splitlines() if not line.startswith("#"))
    return {name: value.strip() for name, _, value in pairs}


def _read_policy(reply: ServerReply) -> str:
    """Of CONFIG GET; "" if it was refused, as by hosted servers."""
    value = reply[1] if isinstance(reply, list) and len(reply) == 2 else b""
    return value.decode("ascii", "replace") if isinstance(value, bytes) else ""
