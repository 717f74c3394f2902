"""The records of sessions in the store, one for each conversation."""

import asyncio
from collections.abc import Mapping, Sequence

from gateway.sessions.record import KIND, StoredSession, TitleOnly
from gateway.state.records import K, Kind, Records
from gateway.store.interface import LATEST, Found, Key, ListedRecord, Lookup, Store


class SessionRecords:
    """tag: of the owner, see `store.keys`. What is loaded raises StoreError."""

    def __init__(self, store: Store, keep_seconds: float) -> None:
        """keep_seconds: unless a record is written with another time."""
        self._store = store
        self._sessions = Records(store, Kind(name=KIND, type=StoredSession, keep_seconds=keep_seconds))
        self._titles = Records(store, Kind(name=KIND, type=TitleOnly, keep_seconds=keep_seconds))

    async def load(self, tag: str, conversation_id: str) -> StoredSession | None:
        (found,) = await self._store.get(tag, [Lookup(KIND, (conversation_id,))], wait=LATEST)
        return _parse(self._sessions, tag, found)

    async def load_titles(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """By conversation. wanted: ids of conversations by the tag of their owner. A round trip for each."""
        titles: dict[str, str] = {}
        for tag, ids in wanted.items():
            lookups = [Lookup(KIND, (identity,)) for identity in ids]
            found = await self._store.get(tag, lookups, wait=LATEST)
            parsed = await asyncio.to_thread(self._parse_titles, tag, found)
            titles |= {identity: title for identity, title in zip(ids, parsed, strict=True) if title}
        return titles

    def write(self, session: StoredSession, keep_seconds: float) -> None:
        self._sessions.put(session.owner, session.id, session, group=session.id, keep_seconds=keep_seconds)

    def _parse_titles(self, tag: str, found: Sequence[Found | None]) -> list[str]:
        parsed = [_parse(self._titles, tag, each) for each in found]
        return [each.title if each is not None else "" for each in parsed]


def _parse(records: Records[K], tag: str, found: Found | None) -> K | None:
    if found is None:
        return None
    listed = ListedRecord(Key(tag, KIND, found.name), found.name, found.value)
    return next((each.record for each in records.parse_listed([listed])), None)
