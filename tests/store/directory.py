"""Store directories for tests, and what stands in them."""

import contextlib
import random
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

from gateway.store.disk import DiskStore


@contextlib.asynccontextmanager
async def opened(directory: Path, **options: object) -> AsyncIterator[DiskStore]:
    store = DiskStore(directory, linger_seconds=0.01, **options)  # type: ignore[arg-type]  # a test's own
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def fill(directory: Path, count: int = 300) -> None:
    async with opened(directory) as store:
        for number in range(count):
            store.write(f"head:{number}", random.Random(number).randbytes(1_000), keep_seconds=3_600)


def find_quarantined(directory: Path) -> list[Path]:
    return sorted(directory.parent.glob(f"{directory.name}.damaged-*"))


def run_sql(directory: Path, *statements: tuple[str, tuple[object, ...]]) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(directory / "cache.db")) as connection:
        rows = [row for text, values in statements for row in connection.execute(text, values)]
        connection.commit()
    return rows


PLANT = (
    "INSERT INTO Cache(key, raw, store_time, expire_time, access_time, mode, filename, value)"
    " VALUES (?, ?, 0, ?, 0, ?, ?, ?)"
)


def count_bytes(directory: Path) -> int:
    """Of the database as it is after its next checkpoint."""
    (row,) = run_sql(
        directory, ("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size", ())
    )
    assert isinstance(row[0], int)
    return row[0]


def write_garbage(directory: Path) -> None:
    (directory / "cache.db").write_bytes(b"this is not a database" * 1_000)
