"""What several processes have counted of one conversation is added up, and comes back from a record."""

from dataclasses import replace as with_fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.activity.book import ActivityBook
from gateway.activity.record import (
    ConversationActivity,
    StoredActivity,
    Totals,
    find_increment,
    merge,
    restore_activity,
    store_activity,
)
from gateway.activity.unshortened import Unshortened
from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import (
    CompactionReason,
    CompactionRequest,
    CompactionResult,
    make_digest_request,
)
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.limits.model_limits import Limits
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage
from gateway.tenants import Tenant
from tests.builders.chat import make_turn, read
from tests.decisions.builders import make_batch, make_pivot, render

_MESSAGES = [{"role": "user", "content": "Fix it."}]
for _number in range(4):
    _MESSAGES += [
        {"role": "assistant", "content": f"Did {_number}."},
        {"role": "user", "content": f"And {_number}?"},
    ]


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def make_book(clock: Clock | None = None) -> ActivityBook:
    return ActivityBook(4 << 20, clock or Clock())


def receive(tenant: str = "t") -> Received:
    return read(render(_MESSAGES), tenant)


def turn(conversation_id: str = "c", tenant: str = "t", **fields: Any) -> Turn:
    named = {"tenant": Tenant(tenant, None, "default"), "conversation_id": conversation_id}
    return make_turn(receive(tenant), **(named | fields))


def plan(
    received: int = 100, sent: int = 100, pivot: Pivot | None = None, batches: tuple[Batch, ...] = ()
) -> Plan:
    return Plan(pivot=pivot, batches=batches, new_batch=None, received=received, sent=sent, output=None)


_DIGEST = make_digest_request(CompactionReason.HARD_THRESHOLD)
_PIVOT = make_pivot(receive().conversation, 5)


class _Process:
    """A book that serves one conversation, and adds to a shared record now and then."""

    def __init__(self, clock: Clock) -> None:
        self.book: ActivityBook = make_book(clock=clock)
        self.stored = Totals()

    @property
    def activity(self) -> ConversationActivity | None:
        return self.book.find("c")

    def add_to(self, record: ConversationActivity | None) -> ConversationActivity | None:
        own = self.activity
        if own is None:
            return record
        entry = self.book.find_entry("c")
        assert entry is not None
        merged = own if record is None else merge(record, own, find_increment(own, self.stored))
        entry.go_on(merged)
        self.stored = structs.replace(merged.totals)
        # As the store has it: nothing that is changed later.
        return pass_through(merged)


# Which process does something, and what: a request, a compaction, or an addition to the record.
_STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["request", "request", "compaction", "add"])), max_size=40
)


@given(_STEPS)
def test_the_record_has_the_sums_of_all_processes(steps: list[tuple[int, str]]) -> None:
    clock = Clock()
    processes = [_Process(clock) for _ in range(3)]
    record: ConversationActivity | None = None
    requests, covers = [], []
    for number, (place, step) in enumerate(steps):
        clock.now += 1
        process = processes[place]
        if step == "request":
            process.book.note_request(turn(), plan(1_000 + number, number), Usage(number + 1, 1))
            requests.append((clock.now, number + 1))
        elif step == "compaction":
            result = CompactionResult(with_fields(_PIVOT, covers=number), 0)
            process.book.note_compaction(turn(), result, _DIGEST, seconds=0, post_tokens=0)
            covers.append(number)
        else:
            record = process.add_to(record)
    for process in processes:
        record = process.add_to(record)
    if record is None:
        assert not requests and not covers
        return
    assert record.totals.requests == len(requests) and record.totals.compactions == len(covers)
    assert record.totals.saved_tokens == 1_000 * len(requests)
    assert record.totals.prompt_tokens == sum(number for _, number in requests)
    points = record.series.list_points()
    assert [(point.at_seconds, point.sent) for point in points] == requests
    assert [note.covers for note in record.summaries] == covers
    assert record.seen_seconds >= max([at for at, _ in requests], default=0)


def test_the_newest_request_is_that_of_the_process_that_saw_it_last() -> None:
    clock = Clock()
    first, second = _Process(clock), _Process(clock)
    first.book.note_request(turn(), plan(), None)
    clock.now += 10
    second.book.note_request(turn(session="later"), plan(pivot=_PIVOT), None)
    for one, other in ((first, second), (second, first)):
        record, own = one.activity, other.activity
        assert record is not None and own is not None
        merged = merge(record, own, find_increment(own, Totals()))
        assert (merged.session, merged.plan, merged.first_seconds) == ("later", "pivot", 1_000.0)


def test_requests_whose_points_are_not_kept_stay_in_the_sums() -> None:
    process = _Process(Clock())
    for _ in range(700):
        process.book.note_request(turn(), plan(), None)
    record = process.add_to(None)
    assert record is not None
    process.book.note_request(turn(), plan(), None)
    merged = process.add_to(record)
    assert merged is not None and merged.totals.requests == 701
    assert 500 <= len(merged.series) < 701


def test_a_conversation_that_would_have_ended_for_one_process_has_ended() -> None:
    clock = Clock()
    first, second = _Process(clock), _Process(clock)
    small = turn(limits=Limits(context=1_000))
    first.book.note_request(small, plan(1_200, 100), Usage(900, 1))
    clock.now += 10
    second.book.note_request(turn(), plan(), Usage(100, 1))
    record, own = first.activity, second.activity
    assert record is not None and own is not None
    merged = merge(record, own, find_increment(own, Totals()))
    assert (merged.unshortened.died_at, merged.unshortened.at_seconds) == (1, 1_010.0)
    # It ended with the request behind those that another process had seen.
    merged = merge(own, record, find_increment(record, Totals()))
    assert merged.unshortened.died_at == 2


_FIELDS = [name for name in Totals.__struct_fields__ if not name.endswith("_usd")]


def totals() -> st.SearchStrategy[Totals]:
    counts = {name: st.integers(0, 10**12) for name in _FIELDS}
    money = st.none() | st.integers(0, 1_000).map(float)
    sums = {name: money for name in Totals.__struct_fields__ if name.endswith("_usd")}
    return st.builds(Totals, **counts, **sums)


@given(totals(), totals())
def test_totals_add_field_by_field(left: Totals, right: Totals) -> None:
    before = structs.asdict(left)
    left.add(right)
    for name, value in structs.asdict(right).items():
        earlier = before[name]
        expected = None if earlier is None and value is None else (earlier or 0) + (value or 0)
        assert structs.asdict(left)[name] == expected


@given(totals(), totals())
def test_what_was_added_is_what_came_since(left: Totals, right: Totals) -> None:
    both = structs.replace(left)
    both.add(right)
    since = both.minus(left)
    for name, value in structs.asdict(right).items():
        assert (getattr(since, name) or 0) == pytest.approx(value or 0)


# Records.


def encode(activity: ConversationActivity) -> bytes:
    return msgspec.msgpack.encode(store_activity(activity))


def pass_through(activity: ConversationActivity) -> ConversationActivity | None:
    """Into the store and back."""
    return restore_activity(msgspec.msgpack.decode(encode(activity), type=StoredActivity))


def make(requests: int = 3) -> ConversationActivity:
    book = make_book()
    book.use_prices(lambda *_: Price(input=1, output=2))
    pivot = make_pivot(receive().conversation, 5)
    result = CompactionResult(pivot, 1, "toy", 500, Usage(400, 20))
    request = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=3)
    book.note_compaction(turn(), result, request, seconds=1.5, post_tokens=200)
    for number in range(requests):
        sent = plan(600, 300, pivot, (make_batch(receive().conversation, []),))
        book.note_request(turn(parent_id="p", session="s"), sent, Usage(310, 30, number))
    activity = book.find("c")
    assert activity is not None
    return activity


@pytest.mark.parametrize("requests", [0, 3, 549, 700])
def test_a_record_gives_the_same_activity_again(requests: int) -> None:
    activity = make(requests)
    again = pass_through(activity)
    assert again is not None
    assert encode(again) == encode(activity)
    assert again.totals == activity.totals and again.summaries == activity.summaries
    assert again.pivot == activity.pivot and again.batches == activity.batches
    assert again.series.list_points() == activity.series.list_points()


@pytest.mark.parametrize("points", [b"AAAA", b"!"])
def test_a_record_with_a_damaged_series_counts_as_absent(points: bytes) -> None:
    assert restore_activity(structs.replace(store_activity(make()), points=points)) is None


def test_where_an_unshortened_conversation_ended_is_kept() -> None:
    activity = make()
    activity.unshortened = Unshortened(at_seconds=5.0, hit_share=0.5, died_at=7)
    again = pass_through(activity)
    assert again is not None and again.unshortened == activity.unshortened and type(again.totals) is Totals
