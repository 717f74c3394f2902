import json

import msgspec

from gateway.activity.rows import Row, make_row
from gateway.core.money import Price
from gateway.core.sizing.usage import Usage
from tests.activity.talk import make_book, plan, receive, turn
from tests.builders.chat import make_pivot


def make() -> Row:
    book = make_book()
    book.use_prices(lambda *_: Price(input=1, output=1))
    book.note_request(turn(), plan(500, 500), Usage(480, 20))
    pivot = make_pivot(receive().conversation, 5, saved_tokens=300, created_seconds=0.0)
    book.note_request(turn(), plan(600, 300, pivot), Usage(310, 30, 100))
    activity = book.find("c")
    assert activity is not None
    return make_row(activity)


def test_a_row_shows_the_newest_request_and_the_sums() -> None:
    row = make()
    assert (row.id, row.requests, row.plan, row.model) == ("c", 2, "pivot", "toy")
    assert (row.received_tokens, row.sent_tokens, row.prompt_tokens, row.output_tokens) == (610, 310, 310, 30)
    assert (row.saved_tokens, row.cache_breaks, row.window) == (300, 1, None)
    assert row.spent_usd == 0.00084 and row.summary_usd is None
    assert row.first_seen == "1970-01-01T00:16:40.000+00:00"
    assert row.pivot is not None and (row.pivot.kind, row.pivot.created) == (
        "summary",
        "1970-01-01T00:00:00+00:00",
    )


def test_a_row_is_json_without_any_text_of_the_conversation() -> None:
    text = msgspec.json.encode(make()).decode()
    assert json.loads(text)["pivot"]["covers"] == 5
    assert "nothing was broken" not in text


def test_a_conversation_that_has_only_been_compacted_has_a_row() -> None:
    book = make_book()
    book.note_pruning(turn())
    activity = book.find("c")
    assert activity is not None and make_row(activity).received_tokens == 0
