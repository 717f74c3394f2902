"""A child process that writes until it is killed, and prints each key once it is durable.

Run as `python -m tests.store.keep_writing DIRECTORY ROUND`.
"""

import asyncio
import itertools
import sys
from pathlib import Path

from gateway.store.disk import DiskStore


def make_value(key: str) -> bytes:
    """The value names its key, so that a reader can check it. Some are large."""
    number = int(key.rpartition(".")[2])
    size = (1 << 20) + 5 if number % 40 == 7 else 100 + number * 37 % 5_000
    return (key.encode() + b"|") * (size // len(key))


async def write_for_ever(directory: Path, round_: str) -> None:
    store = DiskStore(directory, linger_seconds=0.01)
    await store.open()
    for number in itertools.count():
        key = f"{round_}.{number}"
        store.write(f"head:{key}", make_value(key), keep_seconds=3_600)
        # One key is rewritten all the time, now and then with a large value.
        latest = f"{round_}.{number // 40 * 40 + 7}" if number % 2 else key
        store.write(f"same:{round_}", make_value(latest), keep_seconds=3_600)
        if number % 3 == 0:
            await store.write_durably(f"pivot:{key}", make_value(key), keep_seconds=3_600)
            sys.stdout.write(f"pivot:{key}\n")
            sys.stdout.flush()
        elif number % 50 == 1:
            await store.write_durably(f"same:{round_}", make_value(key), keep_seconds=3_600)
            sys.stdout.write(f"same:{round_}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write_for_ever(Path(sys.argv[1]), sys.argv[2]))
