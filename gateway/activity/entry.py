"""One conversation in the book, with what is needed while this process runs."""

from typing import Final

from msgspec import structs

from gateway.activity.prices import FindPrice
from gateway.activity.record import ConversationActivity, Totals
from gateway.core.history.pivot import Pivot
from gateway.core.money import Price
from gateway.lru import ENTRY_WEIGHT_BYTES, weigh_texts

# An entry with its totals, its note of a pivot and the texts that are always short.
_ENTRY_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 3_000
_SUMMARY_WEIGHT_BYTES: Final = 700
_BATCH_WEIGHT_BYTES: Final = 120


class Entry:
    __slots__ = (
        *("activity", "caches", "find_price", "is_stored", "pivot", "price"),
        *("stored_seconds", "stored_totals", "summary_hash"),
    )

    def __init__(self, activity: ConversationActivity) -> None:
        self.activity = activity
        # Whether the upstream has ever reported cached tokens.
        self.caches = activity.totals.cached_tokens > 0
        # The price of the model, and where it was found: prices may be reloaded.
        self.price: Price | None = None
        self.find_price: FindPrice | None = None
        # The pivot that the newest request was sent with. Only its identity and hash are looked at.
        self.pivot: Pivot | None = None
        self.summary_hash: int | None = None
        # What of the totals is in the store, and when it was written; by the clock of what writes.
        self.stored_totals = Totals()
        self.stored_seconds = 0.0
        self.is_stored = False

    @property
    def weight_bytes(self) -> int:
        activity = self.activity
        weight = _ENTRY_WEIGHT_BYTES + activity.series.weight_bytes
        weight += len(activity.summaries) * _SUMMARY_WEIGHT_BYTES
        weight += len(activity.batches) * _BATCH_WEIGHT_BYTES
        return weight + weigh_texts(activity.tenant, activity.session, activity.model)

    def note_stored(self, totals: Totals, seconds: float = 0.0) -> None:
        """The store has these totals now; everything beyond them is new."""
        self.stored_totals, self.stored_seconds, self.is_stored = structs.replace(totals), seconds, True

    def go_on(self, activity: ConversationActivity) -> None:
        """With what another process has added to it, too."""
        if activity.pivot != self.activity.pivot:
            # Of a request that this process has not seen.
            self.pivot = self.summary_hash = None
        self.activity = activity
        self.caches = self.caches or activity.totals.cached_tokens > 0
