"""Finds what the stores have of sessions."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.sessions.diffs import name_diff
from gateway.sessions.record import StoredSession, name_session, parse_session, parse_title
from gateway.sessions.title_calls import name_title
from gateway.store import Store


class SessionNames(NamedTuple):
    """Names of records: in the main store, and among the originals."""

    state: list[str]
    diffs: list[str]


async def load_session(store: Store, tag: str, conversation_id: str) -> StoredSession | None:
    """tag: of the owner, see `store.keys`."""
    key = name_session(tag, conversation_id)
    data = await store.read(key)
    return parse_session(key, data) if data is not None else None


async def load_titles(store: Store, wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """By conversation. wanted: ids of conversations by the tag of their owner. One round trip for each."""
    titles: dict[str, str] = {}
    for tag, ids in wanted.items():
        found = await store.read_groups([(name_session(tag, identity),) for identity in ids])
        parsed = await asyncio.to_thread(_parse_titles, found)
        titles |= {identity: title for identity, title in zip(ids, parsed, strict=True) if title}
    return titles


def _parse_titles(found: Sequence[tuple[str, bytes] | None]) -> list[str]:
    return [parse_title(*each) if each is not None else "" for each in found]


async def find_session_names(store: Store, tag: str, conversation_id: str) -> SessionNames:
    """Everything that is stored of a session. A client's title waits for it under names of its own."""
    key = name_session(tag, conversation_id)
    data = await store.read(key)
    if data is None:
        return SessionNames([], [])
    session = parse_session(key, data)
    if session is None:
        return SessionNames([key], [])
    titles = [name_title(tag, proof) for proof in session.proofs]
    waiting = [name for name in titles if await store.read(name) is not None]
    diffs = [name_diff(tag, conversation_id, position) for position in session.edits]
    return SessionNames([key, *waiting], diffs)
