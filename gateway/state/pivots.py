"""Pivots, mark batches and recalls: what a history is sent with, for good. Heads name them.

Of two recalls, or batches, under one key the first that is stored is used by all: later requests repeat its
bytes. So other processes are told of pivots only.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from gateway.core.history.conversation import Conversation, find_open_group, list_links
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Pivot, Recall, is_on_chain
from gateway.lru import weigh_texts
from gateway.state.cached import RECORD_WEIGHT_BYTES, Cached, Storage
from gateway.state.news import ChainPlace, StateNews
from gateway.state.trip import Trip
from gateway.store.interface import Lease, StoreError, Unknown
from gateway.store.keys import make_tag

# Of a conversation that this process has seen before, so many of the newest links are asked for. It knows
# what is older, or has been told.
_NEWEST_LINKS: Final = 256

SentPart = Pivot | Batch | Recall


class Pivots:
    def __init__(self, storage: Storage, news: StateNews) -> None:
        self._storage = storage
        self._news = news
        records = storage.records
        self._pivots = Cached(
            storage,
            records.pivots,
            weigh=_weigh_pivot,
            is_better=_is_summary_of,
            on_held=self._note_held,
            on_lost=self._note_lost,
        )
        self._batches = Cached(
            storage,
            records.batches,
            weigh=lambda batch: RECORD_WEIGHT_BYTES + 96 * len(batch.marks) + weigh_texts(batch.placeholder),
        )
        self._recalls = Cached(
            storage, records.recalls, weigh=lambda recall: RECORD_WEIGHT_BYTES + weigh_texts(recall.text)
        )
        self._caches: dict[type[SentPart], Cached[Any]] = {
            Pivot: self._pivots,
            Batch: self._batches,
            Recall: self._recalls,
        }
        # Another process has made this pivot: perhaps a summary in place of a digest.
        news.listen("pivot", lambda _, key: self._pivots.outdate(key))

    # Pivots

    def find(self, key: str | None) -> Pivot | None:
        """In memory alone."""
        return self._pivots.find(key) if key else None

    async def load(self, owner: str, key: str) -> Pivot | None:
        """Does not ask again for what the store did not have. What memory has if the store says nothing."""
        return next(iter(await self._pivots.load(owner, (key,))), None)

    def list_on_chain(self, conversation: Conversation) -> list[Pivot]:
        """Every pivot in memory whose key is on the chain, in the order of the chain."""
        found = (self._pivots.find(key.hex()) for key in conversation.known_chain)
        return [pivot for pivot in found if pivot is not None]

    def has_newer(self, conversation: Conversation, covers: int) -> bool:
        """Whether a pivot of the chain covers more than so many messages. In memory alone."""
        return any(pivot.covers > covers for pivot in self.list_on_chain(conversation))

    async def save_leased(self, lease: Lease, pivot: Pivot) -> Pivot | None:
        """The pivot that is used from now on, for a compaction under a lease; None if the lease was lost.

        A process alone does not replace what the store has. Raises StoreError.
        """
        saved = await self._pivots.save_durably(pivot.owner, pivot.key, pivot, lease)
        return self._announce(pivot) if saved is pivot else saved

    async def save_edited(self, lease: Lease, pivot: Pivot) -> bool:
        """What a person has written, which is never kept for later: it is in the store when this returns
        True. False if the lease was lost. Raises StoreError.
        """
        if lease.is_alone:
            raise StoreError("the store cannot be reached")
        stored = await self._pivots.put_durable(pivot.owner, pivot.key, pivot, lease=lease)
        if stored is not None:
            self._pivots.hold_stored(pivot.owner, pivot.key, pivot)
            self._announce(pivot)
        return stored is not None

    async def load_again(self, owner: str, key: str) -> Pivot | None:
        """What the store has now; what memory has if the store has nothing. Raises Unknown."""

        def take(_: str, stored: Pivot | None) -> None:
            if stored is not None and stored != self.find(key):
                self._pivots.hold_stored(owner, key, stored)

        trip = self._storage.begin_trip(owner)
        trip.ask(self._pivots.records, (key,), take)
        await trip.run()
        return self.find(key)

    async def find_edited(self, pivot: Pivot) -> Pivot | None:
        """What a person has written in its place; None if the store does not say."""
        with suppress(Unknown):
            stored = await self.load_again(pivot.owner, pivot.key)
            return stored if stored is not None and stored.is_edited else None
        return None

    async def save_new(self, pivot: Pivot) -> Pivot:
        """The pivot that is used from now on: this one, or the one that was stored under its key before.

        Durable when this returns. Raises StoreError.
        """
        saved = await self._pivots.save_durably(pivot.owner, pivot.key, pivot) or pivot
        return self._announce(pivot) if saved is pivot else saved

    async def load_newest(self, owner: str, keys: Sequence[str]) -> Pivot | None:
        """The pivot of the first of these keys that has one here or in the store, which is always asked.

        Raises Unknown.
        """
        trip = self._storage.begin_trip(owner)
        trip.ask(self._pivots.records, keys, self._take)
        await trip.run()
        found = (self._pivots.find(key) for key in keys)
        return next((pivot for pivot in found if pivot is not None), None)

    def hold(self, part: Pivot | Recall) -> None:
        """In memory alone. A recall that is known under its key stays."""
        cache = self._caches[type(part)]
        if isinstance(part, Pivot) or cache.find(part.key) is None:
            cache.hold(part.owner, part.key, part)

    # Whatever a request is sent with

    async def secure(self, parts: Sequence[SentPart]) -> None:
        """Durable when this returns, as far as it is not known to be in the store. What another process has
        stored there stays, and is used from then on. Raises StoreError.
        """
        # As they were made: what a request is sent with may be fitted to what its client still sends.
        missing = [
            (cache, cache.find(part.key) or part)
            for part in parts
            if not (cache := self._caches[type(part)]).is_stored(part.key)
        ]
        if missing:
            await asyncio.gather(*(cache.save_durably(part.owner, part.key, part) for cache, part in missing))

    def is_secure(self, parts: Sequence[SentPart]) -> bool:
        """Whether the store is known to have them."""
        return all(self._caches[type(part)].is_stored(part.key) for part in parts)

    def refresh(self, parts: Sequence[SentPart]) -> None:
        """What is in use is written again once a day; what is not used for `retention` is dropped.

        Where other processes write, too, nothing is written in the place of what they may have stored there:
        a summary in the place of a digest, what a person asked for, or their own while one of both had no
        store. See `secure`.
        """
        is_shared = self._storage.store.is_shared
        for part in parts:
            cache, is_digest = self._caches[type(part)], isinstance(part, Pivot) and part.is_digest
            is_own = not is_digest and cache.is_current(part.key) and cache.is_stored(part.key)
            if is_own or not is_shared:
                cache.refresh(part.owner, part.key, cache.find(part.key) or part)

    # Look-ups

    def lacks(self, head: Head) -> bool:
        """Whether memory lacks something that this head names and the store may have."""
        if head.pivot is not None and self._pivots.is_missing(head.pivot):
            return True
        # Most heads name none, and a generator costs more than this question.
        if head.batches and any(map(self._batches.is_missing, head.batches)):
            return True
        return bool(head.recalls) and any(map(self._recalls.is_missing, head.recalls))

    def ask_newest(self, trip: Trip, conversation: Conversation, *, is_known: bool) -> None:
        """For the newest pivot behind those in memory. is_known: this process has seen the history before."""
        known = self.list_on_chain(conversation)
        start = known[-1].covers + 1 if known else 1
        links = list_links(conversation, start, find_open_group(conversation))
        some = islice(links, _NEWEST_LINKS) if is_known else links
        trip.ask(self._pivots.records, (link.hex() for link in some), self._take)

    def ask_pivot(self, trip: Trip, owner: str, key: str) -> None:
        """For a pivot that something names, also if another process has changed it."""
        if not self._pivots.is_current(key):
            self._pivots.ask(trip, owner, key)

    def ask_named(self, trip: Trip, owner: str, head: Head | None) -> None:
        """For what a head names and memory lacks."""
        if head is not None:
            self.ask_names(trip, owner, head.pivot, head.batches)
            self._recalls.ask_missing(trip, owner, head.recalls)

    def ask_names(self, trip: Trip, owner: str, pivot: str | None, batches: Sequence[str]) -> None:
        """For this pivot and these batches, as far as memory lacks them."""
        if pivot is not None:
            self._pivots.ask_missing(trip, owner, (pivot,))
        self._batches.ask_missing(trip, owner, batches)

    def _take(self, key: str, pivot: Pivot | None) -> None:
        if pivot is not None:
            self._pivots.hold_loaded(pivot.owner, key, pivot)

    # Places

    def _announce(self, pivot: Pivot) -> Pivot:
        self._news.announce_place("pivot", pivot.owner, ChainPlace(pivot.key, pivot.covers))
        return pivot

    def _note_held(self, pivot: Pivot) -> None:
        """For the next request of its conversation, if that would not look for it."""
        if pivot.is_manual:
            self.activate(pivot)

    def _note_lost(self, pivot: Pivot) -> None:
        """No head may name it yet: the next request of its conversation looks in the store."""
        self._news.places.add("news", make_tag(pivot.owner), ChainPlace(pivot.key, pivot.covers))

    def activate(self, pivot: Pivot) -> None:
        """The pivot is active from the conversation's next request on, even below the thresholds."""
        self._news.places.add("manual", make_tag(pivot.owner), ChainPlace(pivot.key, pivot.covers))

    def apply_manual(self, conversation: Conversation, head: Head | None) -> Head | None:
        """The head, with the newest manual pivot of its history unless it names that one or a later one."""
        if head is None:
            return None
        tag, places = make_tag(head.owner), self._news.places
        found = places.find("manual", tag, conversation)
        if not found:
            return head
        key, covers, _ = found[-1]
        made, known = self.find(key), self.find(head.pivot)
        if made is None or (known is not None and known.covers >= covers):
            places.settle("manual", tag, found)
            return head
        is_eligible = covers <= find_open_group(conversation) and is_on_chain(conversation, key, covers)
        return with_pivot(head, made) if is_eligible else head

    # Mark batches and recalls

    async def load_batches(self, owner: str, keys: Sequence[str]) -> list[Batch] | None:
        """All of them, or None if one is absent, or the store does not say."""
        batches = await self._batches.load(owner, keys)
        return batches if len(batches) == len(keys) else None

    async def load_recalls(self, owner: str, keys: Sequence[str]) -> list[Recall]:
        """Those of these that exist, in their order. Suspends only for what is not in memory, which has all
        that there is if the store does not say.
        """
        return await self._recalls.load(owner, keys)

    async def save_batch_durably(self, batch: Batch) -> None:
        """Also in the place of what an earlier try of the same request has stored. Raises StoreError."""
        await self._batches.put_durable(batch.owner, batch.key, batch)
        self._batches.hold_stored(batch.owner, batch.key, batch)

    def save_batch(self, batch: Batch) -> None:
        self._batches.save(batch.owner, batch.key, batch)


def with_pivot(head: Head, pivot: Pivot) -> Head:
    """Without its usage, which was counted for another array of messages."""
    return replace(head, pivot=pivot.key, pivot_version=pivot.version, prompt_tokens=0, output_tokens=0)


def _is_summary_of(loaded: Pivot, known: Pivot) -> bool:
    """Whether a summary has taken the place of a digest in the store, or a person's text that of an earlier
    version. The other way round never happens.
    """
    return (known.is_digest and not loaded.is_digest) or loaded.version > known.version


def _weigh_pivot(pivot: Pivot) -> int:
    original = pivot.original.text if pivot.original is not None else None
    texts = (pivot.summary, original, pivot.question, pivot.resume, pivot.framing, pivot.recalled)
    return RECORD_WEIGHT_BYTES + weigh_texts(*texts) + pivot.lists.weight_bytes
