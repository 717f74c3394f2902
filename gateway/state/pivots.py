"""Pivots and mark batches: what a history is sent with."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from gateway.core.history.conversation import Conversation, find_open_group, list_links
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Pivot, is_on_chain
from gateway.lru import weigh_texts
from gateway.state.cached import RECORD_WEIGHT_BYTES, Cached, Storage
from gateway.state.chain_places import ChainPlace, ChainPlaces
from gateway.state.heads import Heads
from gateway.state.news import StateNews
from gateway.state.trip import Trip
from gateway.store.interface import Lease, StoreError
from gateway.store.keys import make_tag

# Of a conversation that this process has seen before, so many of the newest links are asked for. It knows
# what is older, or has been told.
_NEWEST_LINKS: Final = 256


class Pivots:
    def __init__(self, storage: Storage, heads: Heads, news: StateNews) -> None:
        self._storage = storage
        self._heads = heads
        self._news = news
        records = storage.records
        self._pivots = Cached(
            storage,
            records.pivots,
            weigh=_weigh_pivot,
            group_of=lambda pivot: pivot.conversation,
            is_better=_is_summary_of,
            on_lost=self._note_lost,
        )
        self._batches = Cached(
            storage, records.batches, weigh=_weigh_batch, group_of=lambda batch: batch.conversation
        )
        # Manual pivots that no head may name yet.
        self._manual = ChainPlaces(storage.memory)
        # Another process has made this pivot: perhaps a summary in place of a digest.
        news.listen("pivot", lambda _, key: self._pivots.outdate(key))

    # Pivots

    def find(self, key: str | None) -> Pivot | None:
        """In memory alone."""
        return self._pivots.find(key) if key else None

    async def load(self, owner: str, key: str) -> Pivot | None:
        """Does not ask again for what the store did not have. What memory has if the store says nothing."""
        return next(iter(await self._pivots.load(owner, (key,))), None)

    def has_on_chain(self, conversation: Conversation) -> bool:
        """In memory alone."""
        return any(self._pivots.find(key.hex()) is not None for key in conversation.known_chain)

    def has_newer(self, conversation: Conversation, covers: int) -> bool:
        """Whether a pivot of the chain covers more than so many messages. In memory alone."""
        links = islice(conversation.chain, covers + 1, None)
        return any(self._pivots.find(link.hex()) is not None for link in links)

    def list_on_chain(self, conversation: Conversation) -> list[Pivot]:
        """Every pivot in memory whose key is on the chain, in the order of the chain."""
        found = (self._pivots.find(key.hex()) for key in conversation.known_chain)
        return [pivot for pivot in found if pivot is not None]

    async def save(self, pivot: Pivot) -> None:
        """Durable when this returns, and other processes are told. Raises StoreError; the pivot must not be
        used then.
        """
        await self._pivots.save_durably(pivot.owner, pivot.key, pivot)
        self._note_made(pivot)

    async def save_leased(self, lease: Lease, pivot: Pivot) -> Pivot | None:
        """The pivot that is used from now on, for a compaction under a lease; None if the lease was lost.

        A process alone does not replace what the store has. Raises StoreError.
        """
        saved = await self._pivots.save_leased(lease, pivot.owner, pivot.key, pivot)
        if saved is pivot:
            self._note_made(pivot)
        return saved

    async def save_edited(self, lease: Lease, pivot: Pivot) -> bool:
        """What a person has written, which is never kept for later: it is in the store when this returns
        True. False if the lease was lost. Raises StoreError.
        """
        if lease.is_alone:
            raise StoreError("the store cannot be reached")
        stored = await self._pivots.put_durable(pivot.owner, pivot.key, pivot, lease=lease)
        if stored is not None:
            self._pivots.hold_stored(pivot.owner, pivot.key, pivot)
            self._note_made(pivot)
        return stored is not None

    async def load_again(self, owner: str, key: str) -> Pivot | None:
        """What the store has now; what memory has if the store has nothing. Raises Unknown."""
        trip = self._storage.begin_trip(owner)
        stored = trip.ask(self._pivots.records, (key,))
        await trip.run()
        if stored.record is not None and stored.record != self.find(key):
            self._pivots.hold_stored(owner, key, stored.record)
        return self.find(key)

    async def save_new(self, pivot: Pivot) -> Pivot:
        """The pivot that is used from now on: this one, or the one that was stored under its key before.

        Durable when this returns. Raises StoreError.
        """
        saved = await self._pivots.save_new(pivot.owner, pivot.key, pivot)
        if saved is pivot:
            self._note_made(pivot)
        return saved

    async def load_newest(self, owner: str, keys: Sequence[str]) -> Pivot | None:
        """The pivot of the first of these keys that has one here or in the store, which is always asked.

        Raises Unknown.
        """
        trip = self._storage.begin_trip(owner)
        trip.ask(self._pivots.records, keys, self._take)
        await trip.run()
        found = (self._pivots.find(key) for key in keys)
        return next((pivot for pivot in found if pivot is not None), None)

    def hold(self, pivot: Pivot) -> None:
        """In memory alone."""
        self._pivots.hold(pivot.owner, pivot.key, pivot)
        self._note_place(pivot)

    async def secure(self, pivot: Pivot | None, batches: Sequence[Batch]) -> None:
        """Durable when this returns, as far as it is not known to be in the store. What another process has
        stored there stays, and is used from then on. Raises StoreError.
        """
        # As they were made: what a request is sent with may be fitted to what its client still sends.
        made = [self._batches.find(batch.key) or batch for batch in batches]
        saving = self._batches.secure((batch.owner, batch.key, batch) for batch in made)
        if pivot is None or self._pivots.is_stored(pivot.key):
            await saving
        else:
            known = self._pivots.find(pivot.key) or pivot
            await asyncio.gather(self._pivots.save_new(known.owner, known.key, known), saving)

    def is_secure(self, pivot: Pivot | None, batches: Sequence[Batch]) -> bool:
        """Whether the store is known to have them."""
        return (pivot is None or self._pivots.is_stored(pivot.key)) and all(
            self._batches.is_stored(batch.key) for batch in batches
        )

    def refresh(self, pivot: Pivot | None, batches: Sequence[Batch]) -> None:
        """What is in use is written again once a day; what is not used for `retention` is dropped.

        Where other processes write, too, nothing is written in the place of what they may have stored there:
        see `secure`.
        """
        if pivot is not None and not self._may_be_replaced(
            self._pivots, pivot.key, is_digest=pivot.is_digest
        ):
            self._pivots.refresh(pivot.owner, pivot.key, self._pivots.find(pivot.key) or pivot)
        for batch in batches:
            if not self._may_be_replaced(self._batches, batch.key):
                self._batches.refresh(batch.owner, batch.key, self._batches.find(batch.key) or batch)

    # Look-ups

    def lacks(self, head: Head) -> bool:
        """Whether memory lacks something that this head names and the store may have."""
        if head.pivot is not None and self._pivots.is_missing(head.pivot):
            return True
        # Most heads name no batch, and a generator costs more than this question.
        return bool(head.batches) and any(self._batches.is_missing(key) for key in head.batches)

    def ask_newest(self, trip: Trip, conversation: Conversation, *, is_known: bool) -> None:
        """For the newest pivot behind those in memory. is_known: this process has seen the conversation."""
        known = self.list_on_chain(conversation)
        start = known[-1].covers + 1 if known else 1
        links = list_links(conversation, start, find_open_group(conversation))
        some = islice(links, _NEWEST_LINKS) if is_known else links
        trip.ask(self._pivots.records, (link.hex() for link in some), self._take)

    def ask_pivot(self, trip: Trip, owner: str, key: str) -> None:
        """For a pivot that something names, also if another process has changed it."""

        def take(_: str, pivot: Pivot | None) -> None:
            self._pivots.hold_loaded(owner, key, pivot)
            if pivot is not None:
                self._note_place(pivot)

        if not self._pivots.is_current(key):
            trip.ask(self._pivots.records, (key,), take)

    def ask_named(self, trip: Trip, owner: str, head: Head | None) -> None:
        """For what a head names and memory lacks."""
        if head is not None:
            self.ask_names(trip, owner, head.pivot, head.batches)

    def ask_names(self, trip: Trip, owner: str, pivot: str | None, batches: Sequence[str]) -> None:
        """For this pivot and these batches, as far as memory lacks them."""
        if pivot is not None and self._pivots.is_missing(pivot):
            self.ask_pivot(trip, owner, pivot)
        self._batches.ask_missing(trip, owner, batches)

    def _take(self, key: str, pivot: Pivot | None) -> None:
        if pivot is not None:
            self._pivots.hold_loaded(pivot.owner, key, pivot)
            self._note_place(pivot)

    def _note_made(self, pivot: Pivot) -> None:
        self._note_place(pivot)
        self._news.announce_place("pivot", pivot.owner, ChainPlace(pivot.key, pivot.covers))

    def _note_place(self, pivot: Pivot) -> None:
        """For the next request of its conversation, if that would not look for it."""
        place = ChainPlace(pivot.key, pivot.covers)
        if pivot.is_manual:
            self._manual.add(make_tag(pivot.owner), place)

    def _note_lost(self, pivot: Pivot) -> None:
        """No head may name it yet."""
        self._news.note_lost(pivot.owner, ChainPlace(pivot.key, pivot.covers))

    def _may_be_replaced(
        self, cache: Cached[Pivot] | Cached[Batch], key: str, *, is_digest: bool = False
    ) -> bool:
        """Whether another process may have written something else there: a summary in the place of a digest,
        what a person asked for, or its own while one of both had no store.
        """
        if not self._storage.store.is_shared:
            return False
        return is_digest or not (cache.is_current(key) and cache.is_stored(key))

    # Manual pivots

    def activate_manual(self, pivot: Pivot, head: Head | None) -> None:
        """The pivot is active from the conversation's next request on, even below the thresholds.

        head: the newest one that the pivot was made for. It is saved with the pivot, for other processes and
        for after a restart.
        """
        self._manual.add(make_tag(pivot.owner), ChainPlace(pivot.key, pivot.covers))
        if head is not None:
            self._heads.save(_with_pivot(head, pivot))

    def apply_manual(self, conversation: Conversation, head: Head | None) -> Head | None:
        """The head, with the newest manual pivot of its history unless it names that one or a later one."""
        if head is None:
            return None
        tag = make_tag(head.owner)
        places = self._manual.find(tag, conversation)
        if not places:
            return head
        key, covers = places[-1]
        made, known = self.find(key), self.find(head.pivot)
        if made is None or (known is not None and known.covers >= covers):
            for place in places:
                self._manual.drop(tag, place.key)
            return head
        is_eligible = covers <= find_open_group(conversation) and is_on_chain(conversation, key, covers)
        return _with_pivot(head, made) if is_eligible else head

    # Mark batches

    async def load_batches(self, owner: str, keys: Sequence[str]) -> list[Batch] | None:
        """All of them, or None if one is absent, or the store does not say."""
        batches = await self._batches.load(owner, keys)
        return batches if len(batches) == len(keys) else None

    async def save_batch_durably(self, batch: Batch) -> None:
        """Durable when this returns. Raises StoreError."""
        await self._batches.save_durably(batch.owner, batch.key, batch)

    def save_batch(self, batch: Batch) -> None:
        self._batches.save(batch.owner, batch.key, batch)


def _with_pivot(head: Head, pivot: Pivot) -> Head:
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


def _weigh_batch(batch: Batch) -> int:
    return RECORD_WEIGHT_BYTES + 96 * len(batch.marks) + weigh_texts(batch.placeholder)
