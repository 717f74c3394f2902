"""Gives the records of earlier versions the names that this one looks for, when a store on disk is opened.

Until November 2026 the name of a record had no tag of its tenant (`store.keys`). Each record says whose it
is, but for originals: those are in the lists of their conversations.
"""

import logging
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway.originals.removed import parse_removed
from gateway.reporting.compaction_log import make_place_key
from gateway.state.records import find_owner
from gateway.store import StoreError, find_directory
from gateway.store.keys import make_key, make_tag
from gateway.store.renaming import has_untagged, rename_untagged
from gateway.store.snapshot import read_snapshot

log = logging.getLogger("gateway.upgrade")

# Every kind of record that had no tag.
_STATE: Final = (
    *("batch", "calibration", "command", "head", "history", "learned", "log", "marker", "outline", "owned"),
    "pivot",
)
_NAMED: Final = ("item", "turn")
_ORIGINALS: Final = ("original", "taken")
_LOG: Final = "log"
_LIST: Final = "taken"


def upgrade_stores(url: str) -> None:
    """For a store on disk; returns at once if there is nothing to do. What fails is logged, and tried again
    by the next start: the records concerned count as absent until then.
    """
    if not url.startswith("disk:"):
        return
    directory = find_directory(url)
    assert directory is not None
    _upgrade(directory, _STATE)
    _upgrade(directory / "named", _NAMED)
    _upgrade(directory / "originals", _ORIGINALS)


def _upgrade(directory: Path, kinds: Sequence[str]) -> None:
    if not has_untagged(directory, kinds):
        return
    begun_seconds = time.monotonic()
    # Some thousands a second.
    log.info("store %s: records of an earlier version get other names", directory)
    try:
        if kinds is _ORIGINALS:
            owners = dict(_list_owners(directory))
            count = rename_untagged(directory, lambda key, data: _rename_original(owners, key, data))
        else:
            count = rename_untagged(directory, _rename)
    except StoreError as error:
        log.warning("store %s: records of an earlier version are not used yet (%s)", directory, error)
        return
    if count:
        seconds = time.monotonic() - begun_seconds
        log.info("store %s: %d records renamed in %.1f s", directory, count, seconds)


def _rename(key: str, data: bytes) -> list[tuple[str, bytes]]:
    owner = find_owner(data)
    if owner is None:
        return []
    tag = make_tag(owner)
    kind, _, name = key.partition(":")
    renamed = [(make_key(tag, kind, name), data)]
    if kind == _LOG:
        renamed.append((make_place_key(name), tag.encode()))
    return renamed


def _rename_original(owners: Mapping[str, str], key: str, data: bytes) -> list[tuple[str, bytes]]:
    kind, _, name = key.partition(":")
    owner = _find_list_owner(data) if kind == _LIST else owners.get(name)
    return [(make_key(make_tag(owner), kind, name), data)] if owner is not None else []


def _list_owners(directory: Path) -> Iterator[tuple[str, str]]:
    """The owner of each original that a list names, by its digest. A digest has one owner."""
    for _, data in read_snapshot(directory, f"{_LIST}:"):
        removed = parse_removed(_decompress(data))
        if removed is not None:
            for original in removed.originals:
                yield original.digest, removed.owner


def _find_list_owner(data: bytes) -> str | None:
    removed = parse_removed(_decompress(data))
    return removed.owner if removed is not None else None


def _decompress(data: bytes) -> bytes:
    try:
        return zlib.decompress(data)
    except zlib.error:
        return b""
