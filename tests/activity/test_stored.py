"""A record gives the same activity again, or nothing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.activity.record import ConversationActivity, Totals
from gateway.activity.stored import name_record, parse_activity, render_activity
from gateway.activity.unshortened import Unshortened
from gateway.core.compaction.request import CompactionReason, CompactionRequest, CompactionResult
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage
from tests.activity.talk import make_book, plan, receive, turn
from tests.builders.chat import make_batch, make_pivot

_CONVERSATION = receive().conversation
_KEY = name_record("t", "c")


def make(requests: int = 3) -> ConversationActivity:
    book = make_book()
    book.use_prices(lambda *_: Price(input=1, output=2))
    pivot = make_pivot(_CONVERSATION, 5)
    result = CompactionResult(pivot, 1, "toy", 500, Usage(400, 20))
    request = CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=3)
    book.note_compaction(turn(), result, request, seconds=1.5, post_tokens=200)
    for number in range(requests):
        sent = plan(600, 300, pivot, (make_batch(_CONVERSATION, []),))
        book.note_request(turn(parent_id="p", session="s"), sent, Usage(310, 30, number))
    activity = book.find("c")
    assert activity is not None
    return activity


@given(st.integers(0, 700))
def test_a_record_gives_the_same_activity_again(requests: int) -> None:
    activity = make(requests)
    again = parse_activity(_KEY, render_activity(activity))
    assert again is not None
    assert render_activity(again) == render_activity(activity)
    assert again.totals == activity.totals and again.summaries == activity.summaries
    assert again.pivot == activity.pivot and again.batches == activity.batches
    assert again.series.list_points() == activity.series.list_points()


@pytest.mark.parametrize("key", [name_record("other", "c"), name_record("t", "d"), "activity:c"])
def test_a_record_under_another_key_counts_as_absent(key: str) -> None:
    assert parse_activity(key, render_activity(make())) is None


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"points": "AAAA"},
        {"points": "!"},
        {"totals": None},
        {"plan": "other"},
        {"more": 1},
        {"seen_seconds": "now"},
    ],
)
def test_a_record_of_another_kind_counts_as_absent(change: dict[str, object]) -> None:
    record = json.loads(render_activity(make())) | change
    assert parse_activity(_KEY, json.dumps(record).encode()) is None


@given(st.binary(max_size=60))
def test_bytes_that_are_no_record_count_as_absent(data: bytes) -> None:
    assert parse_activity(_KEY, data) is None


def test_a_record_of_a_long_conversation_is_small_and_holds_no_text() -> None:
    data = render_activity(make(549))
    assert len(data) < 40_000
    assert b"nothing was broken" not in data and b"Fix it" not in data


def test_a_record_of_an_earlier_version_is_read_without_what_it_lacks() -> None:
    record = json.loads(render_activity(make()))
    del (
        record["totals"]["unshortened"],
        record["totals"]["without_usd"],
        record["totals"]["compaction_breaks"],
    )
    del record["summaries"][0]["riding_calls"]
    again = parse_activity(_KEY, json.dumps(record).encode())
    assert again is not None and again.unshortened.died_at == 0 and again.totals.without_usd is None


def test_the_version_before_reads_the_record_of_this_one() -> None:
    """It refuses fields of the record that it does not know, and passes over those of nested objects."""
    known = {"version", "owner", "id", "parent", "tenant", "session", "purpose", "model", "upstream", "plan"}
    known |= {"first_seconds", "seen_seconds", "window", "soft", "hard", "pivot", "batches", "messages"}
    known |= {"scope", "totals", "start_seconds", "points", "spans", "summaries"}
    assert json.loads(render_activity(make())).keys() == known


def test_where_an_unshortened_conversation_ended_is_kept() -> None:
    activity = make()
    activity.unshortened = Unshortened(at_seconds=5.0, hit_share=0.5, died_at=7)
    again = parse_activity(_KEY, render_activity(activity))
    assert again is not None and again.unshortened == activity.unshortened and type(again.totals) is Totals
