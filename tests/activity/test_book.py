"""What the book counts: against the sum of what it was told."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.activity.book import ActivityBook
from gateway.activity.record import KEPT_SUMMARIES
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import (
    CompactionReason,
    CompactionRequest,
    CompactionResult,
    make_digest_request,
)
from gateway.core.compaction.summary import Rejected
from gateway.core.history.pivot import Mark
from gateway.core.limits.thresholds import Thresholds
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage
from gateway.store.keys import make_tag
from tests.activity.talk import make_book, make_clock, plan, receive, turn
from tests.builders.chat import make_batch, make_pivot, make_turn, read, render
from tests.state.talk import MESSAGES

_DIGEST = make_digest_request(CompactionReason.HARD_THRESHOLD)
_CONVERSATION = receive().conversation
_PIVOT = make_pivot(_CONVERSATION, 5, saved_tokens=700, created_seconds=900.0)
_BATCH = make_batch(_CONVERSATION, [Mark(1)])
_REQUEST = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=3)
_PRICE = Price(input=2, cached_input=1, output=10)
_THRESHOLDS = Thresholds(
    *(),
    window=100,
    context=100,
    hard=90,
    soft=80,
    target=50,
    tail=10,
    opening=10,
    summary=5,
    longest_summary=5,
)


def price_toy(model: str, *_: str | None) -> Price | None:
    return _PRICE if model == "toy" else None


_USAGES = st.none() | st.builds(
    Usage, st.integers(1, 10**6), st.integers(0, 10**5), st.none() | st.integers(0, 10**6)
)
_PLANS = st.builds(plan, st.integers(500, 10**6), st.integers(0, 500))


@given(st.lists(st.tuples(_PLANS, _USAGES), max_size=20))
def test_totals_are_the_sums_of_the_points(requests: list[tuple[Plan, Usage | None]]) -> None:
    book = make_book()
    for sent, usage in requests:
        book.note_request(turn(), sent, usage)
    activity = book.find("c")
    if activity is None:
        assert not requests
        return
    points, totals = activity.series.list_points(), activity.totals
    assert totals.requests == len(points) == len(requests)
    assert totals.received_tokens == sum(point.received for point in points)
    assert totals.sent_tokens == sum(point.sent for point in points)
    assert totals.saved_tokens == totals.received_tokens - totals.sent_tokens
    assert totals.prompt_tokens == sum(point.prompt_tokens or 0 for point in points)
    assert totals.cached_tokens == sum(point.cached_tokens or 0 for point in points)
    assert totals.output_tokens == sum(point.output_tokens or 0 for point in points)
    assert totals.cache_breaks == sum(point.change is not None for point in points)


def test_the_newest_request_is_described() -> None:
    clock = make_clock()
    book = make_book(clock=clock)
    book.note_request(turn(parent_id="p", session="s" * 300, purpose="agent"), plan(), None)
    clock.now = 1_060.0
    book.note_request(turn(thresholds=_THRESHOLDS), plan(200, 150, _PIVOT, (_BATCH,)), Usage(160, 5))
    activity = book.find("c")
    assert activity is not None
    assert (activity.first_seconds, activity.seen_seconds) == (1_000.0, 1_060.0)
    assert (activity.parent, activity.session, activity.purpose) == ("p", "s" * 256, "agent")
    assert (activity.plan, activity.window, activity.soft, activity.hard) == ("pivot+pruned", 100, 80, 90)
    assert activity.pivot is not None and activity.pivot.covers == 5
    newest = activity.series.find_newest()
    assert newest is not None and (newest.prompt_tokens, newest.hard, newest.change) == (
        160,
        90,
        "compaction",
    )


def test_money_is_counted_by_the_price_of_the_model() -> None:
    book = make_book()
    book.use_prices(price_toy)
    first = book.note_request(turn(), plan(1_500, 500), Usage(1_000_000, 100_000))
    second = book.note_request(turn(), plan(1_500, 500), Usage(1_000_000, 0, 500_000))
    unreported = book.note_request(turn(), plan(1_500, 500), None)
    assert [first.spent_usd, first.saved_usd] == pytest.approx([3.0, 1_000 * 2 / 1e6])
    # From here on the upstream is known to have a cache.
    assert [second.spent_usd, second.saved_usd] == pytest.approx([1.5, 1_000 * 1 / 1e6])
    assert unreported.spent_usd is None and unreported.saved_usd == second.saved_usd
    activity = book.find("c")
    assert activity is not None and activity.totals.spent_usd == pytest.approx(4.5)
    assert activity.totals.saved_usd == pytest.approx(4_000 / 1e6)


def test_without_a_price_money_is_unknown_until_there_is_one() -> None:
    book = make_book()
    assert book.note_request(turn(), plan(), Usage(100, 1)).spent_usd is None
    activity = book.find("c")
    assert activity is not None and activity.totals.spent_usd is None
    book.use_prices(price_toy)
    assert book.note_request(turn(), plan(), Usage(1_000_000, 0)).spent_usd == pytest.approx(2.0)
    assert activity.totals.spent_usd == pytest.approx(2.0)


def test_usage_that_no_model_has_counts_as_not_reported() -> None:
    book = make_book()
    book.note_request(turn(), plan(), Usage(10**30, 1))
    activity = book.find("c")
    assert activity is not None and activity.totals.prompt_tokens == 0


def test_a_summary_is_noted_with_what_its_calls_used() -> None:
    book = make_book()
    book.use_prices(price_toy)
    result = CompactionResult(_PIVOT, calls=2, model="toy", pre_tokens=900, usage=Usage(500_000, 10_000))
    book.note_compaction(turn(), result, _REQUEST, seconds=2.5, post_tokens=200)
    activity = book.find("c")
    assert activity is not None
    (note,) = activity.summaries
    assert (note.key, note.covers, note.kind, note.reason) == (_PIVOT.key, 5, "summary", "soft_threshold")
    assert (note.calls, note.seconds, note.prompt_tokens, note.output_tokens) == (2, 2.5, 500_000, 10_000)
    assert [note.pre_tokens, note.post_tokens, note.usd] == pytest.approx([900, 200, 1.1])
    assert (activity.totals.compactions, activity.totals.summary_calls) == (1, 2)
    assert activity.totals.summary_usd == pytest.approx(1.1) and activity.totals.spent_usd is None


def test_usage_of_a_summary_that_no_model_has_counts_as_not_reported() -> None:
    book = make_book()
    result = CompactionResult(_PIVOT, calls=1, model="toy", usage=Usage(10**30, 1))
    book.note_compaction(turn(), result, _REQUEST, seconds=1, post_tokens=0)
    activity = book.find("c")
    assert activity is not None and activity.totals.summary_prompt_tokens == 0
    assert activity.summaries[0].prompt_tokens is None


def test_a_failed_summary_was_paid_for_too() -> None:
    book = make_book()
    book.use_prices(price_toy)
    failed = CompactionResult(Rejected("truncated"), calls=2, model="toy", usage=Usage(1_000, 100))
    book.note_compaction(turn(), failed, _REQUEST, seconds=1, post_tokens=0)
    activity = book.find("c")
    assert activity is not None and activity.summaries == []
    assert (activity.totals.compactions, activity.totals.summary_calls) == (0, 2)
    assert activity.totals.summary_prompt_tokens == 1_000 and activity.totals.summary_usd is not None


def test_a_digest_costs_nothing_and_the_newest_notes_are_kept() -> None:
    book = make_book()
    for number in range(KEPT_SUMMARIES + 3):
        digest = replace(_PIVOT, is_digest=True, covers=number)
        book.note_compaction(turn(), CompactionResult(digest, 0), _DIGEST, seconds=0, post_tokens=0)
    activity = book.find("c")
    assert activity is not None and activity.totals.compactions == KEPT_SUMMARIES + 3
    assert [note.covers for note in activity.summaries] == list(range(3, KEPT_SUMMARIES + 3))
    assert activity.summaries[0].kind == "digest" and activity.totals.summary_usd is None


def test_prunings_are_counted() -> None:
    book = make_book()
    book.note_pruning(turn())
    activity = book.find("c")
    assert activity is not None and activity.totals.prunings == 1


def test_conversations_are_listed_the_newest_first_and_by_tenant() -> None:
    clock = make_clock()
    book = make_book(clock=clock)
    for identity, tenant in (("a", "tenant:one"), ("b", "tenant:two"), ("a", "tenant:one")):
        clock.now += 1
        book.note_request(turn(identity, tenant), plan(), None)
    assert [activity.id for activity in book.list()] == ["a", "b"]
    assert [activity.id for activity in book.list("two")] == ["b"]


def test_a_purge_forgets_a_tenant_and_a_deletion_one_conversation_of_its_owner() -> None:
    book = make_book()
    for identity, tenant in (("a", "one"), ("b", "one"), ("c", "two")):
        book.note_request(turn(identity, tenant), plan(), None)
    book.forget_conversation("one", "c")
    book.forget_conversation("one", "b")
    assert {activity.id for activity in book.list()} == {"a", "c"}
    book.forget(make_tag("one"))
    assert [activity.id for activity in book.list()] == ["c"]


def test_what_has_changed_is_told_once() -> None:
    book = make_book()
    book.note_request(turn("a"), plan(), None)
    book.note_request(turn("a"), plan(), None)
    book.note_pruning(turn("b"))
    assert {activity.id for activity in book.take_changed()} == {"a", "b"}
    assert book.take_changed() == []


def test_the_conversations_that_are_idle_for_longest_make_room() -> None:
    book = ActivityBook(100_000, make_clock())
    for number in range(200):
        book.note_request(turn(f"{number}"), plan(), None)
        book.note_request(turn("busy"), plan(), None)
    kept = {activity.id for activity in book.list()}
    assert {"busy", "199"} <= kept and 10 < len(kept) < 60
    assert {activity.id for activity in book.take_changed()} <= kept


def test_a_turn_may_change_its_model() -> None:
    book = make_book()
    book.use_prices(price_toy)
    book.note_request(turn(), plan(), Usage(1_000_000, 0))
    changed = make_turn(read(render(MESSAGES).replace(b'"toy"', b'"unpriced"')))
    assert book.note_request(changed, plan(), Usage(1_000_000, 0)).spent_usd is None
    activity = book.find("c")
    assert activity is not None and activity.model == "unpriced"
    assert book.note_request(turn(), plan(), Usage(1_000_000, 0)).spent_usd == pytest.approx(2.0)


def test_an_id_that_two_tenants_have_never_joins_what_they_did() -> None:
    book = make_book()
    book.note_request(turn(), plan(100, 90), None)
    book.note_request(turn(tenant="u"), plan(7, 7), None)
    found = book.find("c")
    assert found is not None and (found.owner, found.totals.received_tokens) == ("u", 7)
    other = make_book()
    other.note_request(turn(), plan(100, 90), None)
    book.restore(other.list())
    found = book.find("c")
    assert found is not None and (found.owner, found.totals.requests) == ("u", 1)


def test_a_conversation_that_finds_no_room_leaves_nothing() -> None:
    book = make_book(max_bytes=10)
    for number in range(3):
        book.note_request(turn(f"c{number}"), plan(), None)
    assert (book.list(), book.changed, book.unsaved) == ([], set(), set())
