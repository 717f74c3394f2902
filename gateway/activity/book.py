"""The activity of all conversations, in memory and bounded in bytes.

One entry each, changed in place by every answered request. Entries that have been idle for longest make room
for others.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import structs

from gateway.activity.counting import (
    NotedRequest,
    SummaryMoney,
    count_request,
    count_summary,
    trust_usage,
)
from gateway.activity.economics import fill
from gateway.activity.prices import FindPrice
from gateway.activity.record import (
    KEPT_SUMMARIES,
    ConversationActivity,
    PivotNote,
    SummaryNote,
    Totals,
    find_increment,
    merge,
)
from gateway.activity.series import PointSeries, PrefixChange, RequestPoint
from gateway.activity.unshortened import Prior
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import CompactionRequest, CompactionResult, SummaryKind
from gateway.core.history.head import is_comparable
from gateway.core.history.pivot import Pivot
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage
from gateway.lru import ENTRY_WEIGHT_BYTES, Lru, weigh_texts
from gateway.store.keys import make_tag

# Clients choose the name of a model and of a session; this much of each is kept.
_NAME_CHARS: Final = 256
# An entry is weighed again after so many requests.
_WEIGH_REQUESTS: Final = 16
# An entry with its totals, its note of a pivot and the texts that are always short.
_ENTRY_WEIGHT_BYTES: Final = ENTRY_WEIGHT_BYTES + 3_000
_SUMMARY_WEIGHT_BYTES: Final = 700
_BATCH_WEIGHT_BYTES: Final = 120


class Entry:
    """One conversation, with what is needed while this process runs."""

    __slots__ = (
        *("activity", "find_price", "is_stored", "pivot", "price"),
        *("stored_seconds", "stored_totals", "summary_hash"),
    )

    def __init__(self, activity: ConversationActivity) -> None:
        self.activity = activity
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

    def note_stored(self, totals: Totals) -> None:
        """The store has these totals now; everything beyond them is new."""
        self.stored_totals, self.stored_seconds, self.is_stored = structs.replace(totals), 0.0, True

    def go_on(self, activity: ConversationActivity) -> None:
        """With what another process has added to it, too."""
        if activity.pivot != self.activity.pivot:
            # Of a request that this process has not seen.
            self.pivot = self.summary_hash = None
        self.activity = activity


class ActivityBook:
    """clock: seconds since 1970."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._entries: Lru[str, Entry] = Lru(max_bytes)
        self._find_price: FindPrice = lambda *_: None
        self._clock = clock
        # Conversations that have changed, for those who show them, and for what stores them.
        self.changed: set[str] = set()
        self.unsaved: set[str] = set()
        # Called with entries that made room, and with those that were deleted.
        self.on_dropped: Callable[[Entry], None] | None = None
        self.on_deleted: Callable[[Entry], None] | None = None

    def use_prices(self, find_price: FindPrice) -> None:
        """From now on. What was spent before stays as it was counted."""
        self._find_price = find_price

    def find_price(self, turn: Turn) -> Price | None:
        """By the prices that hold now."""
        return self._find_price(turn.model, turn.upstream.name, turn.owner)

    # What happens

    def note_request(self, turn: Turn, plan: Plan, usage: Usage | None) -> NotedRequest:
        """An answered request. Called for each, so it only counts."""
        now = self._clock()
        identity = turn.conversation_id
        entry = self._get(turn)
        if entry is None:
            entry = self._begin(turn, now)
            change = self._compare_with_parent(turn, plan)
        else:
            change = find_change(entry, turn, plan)
        usage = trust_usage(usage)
        activity = entry.activity
        price = self._choose_price(entry, turn)
        brings_into_use = plan.pivot is not None and self._note_use(entry, plan.pivot)
        _note_newest(entry, turn, plan, now)
        sent = _choose_sent(plan, usage, activity.window)
        point = RequestPoint(
            at_seconds=now,
            messages=activity.messages,
            # What was left out nobody has counted, and what was cut is no saving.
            received=sent + plan.received - plan.cut - plan.sent,
            sent=sent,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            output_tokens=usage.output_tokens if usage is not None else None,
            plan=activity.plan,
            soft=activity.soft,
            hard=activity.hard,
            change=change,
        )
        noted = count_request(activity, point, usage, _find_prior(turn), price)
        noted = noted._replace(brings_into_use=brings_into_use)
        activity.series.append(point)
        if activity.totals.requests % _WEIGH_REQUESTS == 1:
            self._weigh(entry)
        self._note_change(identity)
        return noted

    def note_compaction(
        self,
        turn: Turn,
        result: CompactionResult,
        request: CompactionRequest,
        seconds: float,
        post_tokens: int,
    ) -> SummaryMoney:
        """Also one that failed: its calls were paid for. post_tokens: of the array after it."""
        entry = self._find_entry(turn)
        money = self._count_summary(turn, entry.activity, result)
        pivot = result.pivot
        if pivot is not None:
            entry.activity.totals.compactions += 1
            entry.activity.totals.unused_summaries += 1
            usage = trust_usage(result.usage)
            note = SummaryNote(
                key=pivot.key,
                covers=pivot.covers,
                at_seconds=self._clock(),
                kind=_name_kind(pivot),
                trigger=request.trigger,
                reason=request.reason,
                model=result.model[:_NAME_CHARS] if result.model is not None else None,
                calls=result.calls,
                riding_calls=result.riding_calls,
                seconds=seconds,
                prompt_tokens=usage.prompt_tokens if usage is not None else None,
                output_tokens=usage.output_tokens if usage is not None else None,
                cached_tokens=usage.cached_tokens if usage is not None else None,
                usd=money.usd,
                tokens=pivot.tokens,
                pre_tokens=result.pre_tokens,
                post_tokens=post_tokens,
                is_unused=True,
            )
            entry.activity.summaries = [*entry.activity.summaries, note][-KEPT_SUMMARIES:]
            # It is stored at the next opportunity.
            entry.stored_seconds = 0.0
        self._weigh(entry)
        self._note_change(turn.conversation_id)
        return money

    def note_summary_calls(self, turn: Turn, result: CompactionResult) -> SummaryMoney:
        """Calls for a summary that is not used."""
        money = self._count_summary(turn, self._find_entry(turn).activity, result)
        self._note_change(turn.conversation_id)
        return money

    def note_pruning(self, turn: Turn) -> None:
        """A batch of marks that a request was sent with for the first time."""
        self._find_entry(turn).activity.totals.prunings += 1
        self._note_change(turn.conversation_id)

    # What is asked

    def take_changed(self) -> list[ConversationActivity]:
        """What has changed since this was called before."""
        changed, self.changed = self.changed, set()
        entries = map(self._entries.peek, changed)
        return [entry.activity for entry in entries if entry is not None]

    def find(self, conversation_id: str) -> ConversationActivity | None:
        entry = self._entries.peek(conversation_id)
        return entry.activity if entry is not None else None

    def find_of(self, turn: Turn) -> ConversationActivity | None:
        """The conversation of a request, as it was before it. None before its first one was answered."""
        entry = self._entries.peek(turn.conversation_id)
        return entry.activity if entry is not None and entry.activity.owner == turn.owner else None

    def list(self, tenant: str | None = None) -> list[ConversationActivity]:
        """The newest first; of one tenant by its name, or of all."""
        found = [entry.activity for entry in self._entries.values()]
        if tenant is not None:
            found = [activity for activity in found if activity.tenant == tenant]
        return sorted(found, key=lambda activity: activity.seen_seconds, reverse=True)

    def forget(self, tag: str, conversation_id: str | None = None) -> None:
        """All of a tenant; or one conversation, here and in the store."""
        if conversation_id is None:
            self._entries.drop_where(lambda entry: make_tag(entry.activity.owner) == tag)
            return
        entry = self._entries.peek(conversation_id)
        if entry is not None and make_tag(entry.activity.owner) == tag:
            self._entries.pop(conversation_id)
            if self.on_deleted is not None:
                self.on_deleted(entry)

    # Entries

    def find_entry(self, conversation_id: str) -> Entry | None:
        """For what stores it."""
        return self._entries.peek(conversation_id)

    def restore(self, stored: Iterable[ConversationActivity]) -> None:
        """What an earlier process has left, or another one has stored, the oldest first. Conversations that
        have been seen here by now go on with it.
        """
        live = list(self._entries)
        for activity in stored:
            entry = self._entries.peek(activity.id)
            if entry is None:
                entry = Entry(activity)
            elif entry.activity.owner != activity.owner:
                continue
            else:
                entry.go_on(merge(activity, entry.activity, find_increment(entry.activity, Totals())))
            entry.note_stored(activity.totals)
            self._weigh(entry)
        for conversation_id in live:
            self._entries.get(conversation_id)

    def _get(self, turn: Turn) -> Entry | None:
        """Ids are short hashes: numbers of another tenant are never added to, or shown as this one's."""
        entry = self._entries.get(turn.conversation_id)
        return entry if entry is not None and entry.activity.owner == turn.owner else None

    def _find_entry(self, turn: Turn) -> Entry:
        return self._get(turn) or self._begin(turn, self._clock())

    def _begin(self, turn: Turn, now: float) -> Entry:
        entry = Entry(
            ConversationActivity(
                owner=turn.owner,
                id=turn.conversation_id,
                parent=turn.parent_id,
                tenant=turn.tenant.display_name,
                session=turn.session[:_NAME_CHARS] if turn.session is not None else None,
                purpose=turn.purpose,
                model=turn.model[:_NAME_CHARS],
                upstream=turn.upstream.name,
                first_seconds=now,
                seen_seconds=now,
                totals=Totals(),
                series=PointSeries(now),
                summaries=[],
            )
        )
        self._weigh(entry)
        return entry

    def _note_use(self, entry: Entry, pivot: Pivot) -> bool:
        """Whether this is the first request that is sent with a summary, which may be of another branch."""
        if pivot is entry.pivot:
            return False
        maker = self._entries.peek(pivot.conversation) or entry
        notes = maker.activity.summaries
        place = next((place for place, note in enumerate(notes) if note.key == pivot.key), None)
        if place is None or not notes[place].is_unused:
            return False
        maker.activity.summaries = [*notes]
        maker.activity.summaries[place] = structs.replace(notes[place], is_unused=False)
        maker.activity.totals.unused_summaries -= 1
        self._note_change(maker.activity.id)
        return True

    def _weigh(self, entry: Entry) -> None:
        self._forget_dropped(self._entries.put(entry.activity.id, entry, entry.weight_bytes))

    def _forget_dropped(self, dropped: Iterable[Entry]) -> None:
        for entry in dropped:
            self.changed.discard(entry.activity.id)
            self.unsaved.discard(entry.activity.id)
            if self.on_dropped is not None:
                self.on_dropped(entry)

    def _note_change(self, conversation_id: str) -> None:
        if conversation_id not in self._entries:
            # An entry that is larger than the book is not kept.
            return
        self.changed.add(conversation_id)
        self.unsaved.add(conversation_id)

    def _compare_with_parent(self, turn: Turn, plan: Plan) -> PrefixChange | None:
        """Of the first request of a conversation: one that left another conversation changed the history."""
        parent = self._entries.peek(turn.parent_id) if turn.parent_id is not None else None
        if parent is None:
            return None
        return find_plan_change(parent, plan) or "history"

    # Sums

    def _choose_price(self, entry: Entry, turn: Turn) -> Price | None:
        if entry.find_price is not self._find_price or turn.model != entry.activity.model:
            entry.price = self.find_price(turn)
            entry.find_price = self._find_price
        return entry.price

    def _count_summary(
        self, turn: Turn, activity: ConversationActivity, result: CompactionResult
    ) -> SummaryMoney:
        upstream = turn.upstream.name
        own_price = self._find_price(turn.model, upstream, turn.owner)
        price = None
        if result.model is not None:
            price = self._find_price(result.model, result.upstream or upstream, turn.owner)
        return count_summary(activity, result, price, own_price)


def _choose_sent(plan: Plan, usage: Usage | None, window: int) -> int:
    """As the upstream counted it. Where it did not: our estimate, but not more than the window, because the
    request was answered.
    """
    if usage is not None and usage.prompt_tokens:
        return usage.prompt_tokens
    return min(plan.sent, window) if window else plan.sent


def _find_prior(turn: Turn) -> Prior:
    head, window = turn.head, turn.limits.input or turn.limits.context or 0
    return Prior(window, head.prompt_tokens, head.growth_tokens) if head is not None else Prior(window)


def _note_newest(entry: Entry, turn: Turn, plan: Plan, now: float) -> None:
    activity, thresholds, pivot = entry.activity, turn.thresholds, plan.pivot
    activity.seen_seconds = now
    activity.messages = len(turn.received.conversation.messages)
    activity.scope = turn.scope
    activity.plan = plan.name
    if turn.model != activity.model:
        activity.model = turn.model[:_NAME_CHARS]
    if thresholds is not None:
        activity.window, activity.soft, activity.hard = thresholds.window, thresholds.soft, thresholds.hard
    if pivot is not entry.pivot or (pivot is None and activity.pivot is not None):
        entry.pivot = pivot
        activity.pivot = fill(PivotNote, pivot, kind=_name_kind(pivot)) if pivot is not None else None
        entry.summary_hash = hash(pivot.summary) if pivot is not None else None
    if plan.batches or activity.batches:
        activity.batches = tuple([batch.key for batch in plan.batches])


def _name_kind(pivot: Pivot) -> SummaryKind:
    return "digest" if pivot.is_digest else "summary"


def find_change(entry: Entry, turn: Turn, plan: Plan) -> PrefixChange | None:
    """Why the array of a request is not that of the request before, of the same conversation, with something
    added at its end.
    """
    return find_plan_change(entry, plan) or ("history" if _has_other_history(entry, turn) else None)


def find_plan_change(entry: Entry, plan: Plan) -> PrefixChange | None:
    pivot, before = plan.pivot, entry.activity.pivot
    if pivot is not entry.pivot or entry.pivot is None:
        if (pivot.key if pivot is not None else None) != (before.key if before is not None else None):
            return "compaction"
        if pivot is not None and entry.summary_hash not in (None, hash(pivot.summary)):
            return "edit"
    if (plan.batches or entry.activity.batches) and [batch.key for batch in plan.batches] != [
        *entry.activity.batches
    ]:
        return "pruning"
    return None


def _has_other_history(entry: Entry, turn: Turn) -> bool:
    """Whether the client changed what comes before its new messages: the tools, the model, the leading block,
    or which messages it still sends.
    """
    if not entry.activity.scope:
        return False
    head = turn.head
    return turn.scope != entry.activity.scope or (
        head is not None and not is_comparable(head, turn.received.conversation)
    )
