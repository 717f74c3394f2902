"""A process that uses a store until it is killed, and prints a line for what it was promised.

Run as `python -m tests.store.child URL ROLE NAME`.
"""

import asyncio
import itertools
import random
import sys

from gateway.store.address import make_store
from gateway.store.interface import HeldLease, Key, Lease, Store, StoreError
from tests.store.backends import TAG


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def write(store: Store, name: str) -> None:
    """Durable writes, eight at a time, beside others that may be lost."""

    async def write_some(lane: int) -> None:
        for number in itertools.count():
            key = Key(TAG, "pivot", f"{name}.{lane}.{number}")
            store.put(Key(TAG, "head", f"{name}.{lane}"), b"%d" % number, 3_600)
            if await store.put_durable(key, key.name.encode() * 200, 3_600, wait=60) is not None:
                say(key.name)

    await asyncio.gather(*map(write_some, range(8)))


async def work(store: Store, name: str) -> None:
    """One piece of work for each lease; some holders are slower than their lease. Says what it has stored."""
    chance = random.Random(name)
    for number in itertools.count():
        branch = f"branch.{number % 40}"
        claimed = await store.claim(TAG, branch, ttl=0.3)
        if isinstance(claimed, HeldLease):
            await store.until_free(claimed)
        elif not claimed.is_alone:
            await _work_once(store, claimed, f"{name}.{number}", chance)


async def _work_once(store: Store, lease: Lease, owner: str, chance: random.Random) -> None:
    await asyncio.sleep(chance.choice([0, 0.001, 0.4]))
    key = Key(TAG, "pivot", f"{lease.name}.{lease.fence}")
    try:
        stored = await store.put_durable(key, owner.encode(), 3_600, lease=lease)
    except StoreError:
        return
    if stored is not None:
        say(f"{key.name} {owner}")
        # What is known of a name: the newest fence that has stored something.
        await asyncio.sleep(0)
    store.release(lease)


async def wait_to_write(store: Store, name: str) -> None:
    """Has something queued, says so, and writes it when it is told to."""
    store.put(Key(TAG, "head", name), b"queued before the purge", 3_600, group="g", linger=3_600)
    say("queued")
    await asyncio.to_thread(sys.stdin.readline)
    await store.put_durable(Key("f" * 32, "head", "end"), b"x", 3_600, wait=60)
    say("written")
    await asyncio.to_thread(sys.stdin.readline)


async def main(url: str, role: str, name: str) -> None:
    store = make_store(url)
    await store.open()
    say("open")
    await {"write": write, "work": work, "wait": wait_to_write}[role](store, name)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
