"""Several processes add to one record: in whatever order, nothing is lost and nothing is counted twice."""

from dataclasses import replace as with_fields

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gateway.activity.book import ActivityBook
from gateway.activity.increments import find_increment, merge
from gateway.activity.record import ConversationActivity, Totals
from gateway.activity.stored import name_record, parse_activity, render_activity
from gateway.core.compaction.request import CompactionReason, CompactionResult, make_digest_request
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.usage import Usage
from tests.activity.talk import make_book, make_clock, plan, receive, turn
from tests.builders.chat import make_pivot
from tests.store.clock import Clock

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
        return parse_activity(name_record("t", "c"), render_activity(merged))


# Which process does something, and what: a request, a compaction, or an addition to the record.
_STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["request", "request", "compaction", "add"])), max_size=40
)


@given(_STEPS)
def test_the_record_has_the_sums_of_all_processes(steps: list[tuple[int, str]]) -> None:
    clock = make_clock()
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
    clock = make_clock()
    first, second = _Process(clock), _Process(clock)
    first.book.note_request(turn(), plan(), None)
    clock.now += 10
    second.book.note_request(turn(session="later"), plan(pivot=_PIVOT), None)
    for one, other in ((first, second), (second, first)):
        record, own = one.activity, other.activity
        assert record is not None and own is not None
        merged = merge(record, own, find_increment(own, Totals()))
        assert (merged.session, merged.plan, merged.first_seconds) == ("later", "pivot", 1_000.0)


def test_thinned_requests_stay_in_the_spans() -> None:
    process = _Process(make_clock())
    for _ in range(700):
        process.book.note_request(turn(), plan(), None)
    record = process.add_to(None)
    assert record is not None
    process.book.note_request(turn(), plan(), None)
    merged = process.add_to(record)
    assert merged is not None and merged.totals.requests == 701
    assert merged.series.thinned + len(merged.series) == 701


def test_a_conversation_that_would_have_ended_for_one_process_has_ended() -> None:
    clock = make_clock()
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
