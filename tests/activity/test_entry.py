from gateway.activity.entry import Entry
from gateway.core.sizing.usage import Usage
from tests.activity.talk import make_book, plan, receive, turn
from tests.builders.chat import make_pivot


def make_entry(requests: int = 1) -> Entry:
    book = make_book()
    for _ in range(requests):
        book.note_request(turn(), plan(), Usage(10, 1, 5))
    entry = book.find_entry("c")
    assert entry is not None
    return entry


def test_an_entry_weighs_more_with_each_request_and_with_long_names() -> None:
    assert make_entry(100).weight_bytes - make_entry(1).weight_bytes == 99 * 40
    named = make_entry()
    before = named.weight_bytes
    named.activity.session = "s" * 200
    assert named.weight_bytes > before + 100


def test_what_is_stored_is_remembered_as_it_was_then() -> None:
    entry = make_entry()
    entry.note_stored(entry.activity.totals, 5.0)
    entry.activity.totals.requests += 1
    assert (entry.is_stored, entry.stored_totals.requests, entry.stored_seconds) == (True, 1, 5.0)


def test_a_request_of_another_process_ends_the_comparison_with_the_last_one_here() -> None:
    book = make_book()
    pivot = make_pivot(receive().conversation, 5)
    book.note_request(turn(), plan(pivot=pivot), None)
    entry, other = book.find_entry("c"), make_entry()
    assert entry is not None
    entry.go_on(other.activity)
    assert entry.caches
    # The other process has sent the request before without a summary.
    assert book.note_request(turn(), plan(pivot=pivot), None).change == "compaction"
