"""The URLs of stores, and the store that each names."""

import os
from importlib.util import find_spec
from pathlib import Path

from gateway.store.folder import choose_folder
from gateway.store.interface import Store, StoreRefused
from gateway.store.redis_address import FORM, Address, is_redis, parse_address
from gateway.store.sqlite import SqliteStore


def make_store(url: str) -> Store:
    """`disk:PATH`, `memory:` or `redis://HOST`, not opened yet. Raises StoreRefused for any other form."""
    if is_redis(url):
        address = check_address(url)
        from gateway.store.redis_store import RedisStore  # not before its library is known to be there

        return RedisStore(address)
    return SqliteStore(find_folder(url))


def find_folder(url: str) -> Path | None:
    """Where a store keeps its files; None in memory or on a server. Raises StoreRefused."""
    scheme, _, rest = url.partition(":")
    if (scheme == "memory" and not rest) or is_redis(url):
        return None
    if scheme == "disk" and rest:
        return choose_folder(rest)
    raise StoreRefused(
        f"store: {scheme or 'an empty value'!r} is not a store; use disk:PATH or memory: or {FORM}"
    )


def check_address(url: str) -> Address:
    """Raises StoreRefused if it cannot be used here, whatever the server says."""
    try:
        address = parse_address(url)
    except ValueError as error:
        raise StoreRefused(f"store: {error}") from error
    for name, path in address.files.items():
        if not os.access(path, os.R_OK):
            raise StoreRefused(f"store: {name} {path} cannot be read")
    if find_spec("redis") is None:
        raise StoreRefused("store: redis:// needs its client library: pip install 'refold[redis]'")
    return address
