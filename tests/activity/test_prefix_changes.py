"""Why a prefix is not the one before, as the book notes it."""

from dataclasses import replace

import pytest

from gateway.activity.series import PrefixChange
from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.history.pivot import Mark
from tests.activity.talk import make_book, plan, receive, turn
from tests.builders.chat import make_batch, make_pivot
from tests.builders.state import make_head

_CONVERSATION = receive().conversation
_PIVOT = make_pivot(_CONVERSATION, 5, saved_tokens=700, created_seconds=900.0)
_BATCH = make_batch(_CONVERSATION, [Mark(1)])
_EDITED = replace(_PIVOT, summary="We looked again.")
_LONGER = make_pivot(_CONVERSATION, 7)
_OTHER_BATCH = make_batch(_CONVERSATION, [Mark(3)], 9)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (plan(), plan(), None),
        (plan(), plan(pivot=_PIVOT), "compaction"),
        (plan(pivot=_PIVOT), plan(pivot=_PIVOT), None),
        # The same pivot, read from the store again.
        (plan(pivot=_PIVOT), plan(pivot=replace(_PIVOT)), None),
        (plan(pivot=_PIVOT), plan(pivot=_EDITED), "edit"),
        (plan(pivot=_PIVOT), plan(pivot=_LONGER), "compaction"),
        (plan(pivot=_PIVOT), plan(), "compaction"),
        (plan(), plan(batches=(_BATCH,)), "pruning"),
        (plan(batches=(_BATCH,)), plan(batches=(_BATCH,)), None),
        (plan(batches=(_BATCH,)), plan(batches=(_BATCH, _OTHER_BATCH)), "pruning"),
        (plan(batches=(_BATCH,)), plan(pivot=_PIVOT), "compaction"),
    ],
)
def test_a_request_tells_why_its_prefix_changed(
    before: Plan, after: Plan, change: PrefixChange | None
) -> None:
    book = make_book()
    assert book.note_request(turn(), before, None).change is None or before.changes_body
    assert book.note_request(turn(), after, None).change == change


@pytest.mark.parametrize(
    "other",
    [
        turn(scope="other tools"),
        turn(head=make_head(_CONVERSATION, dropped=2)),
    ],
)
def test_a_client_that_changes_what_it_sent_before_breaks_the_cache(other: Turn) -> None:
    book = make_book()
    book.note_request(turn(), plan(), None)
    assert book.note_request(other, plan(), None).change == "history"


def test_the_first_request_of_a_branch_is_compared_with_the_conversation_that_it_left() -> None:
    book = make_book()
    assert book.note_request(turn("a"), plan(), None).change is None
    assert book.note_request(turn("b", parent_id="a"), plan(), None).change == "history"
    assert book.note_request(turn("d", parent_id="a"), plan(pivot=_PIVOT), None).change == "compaction"
    assert book.note_request(turn("e", parent_id="unknown"), plan(), None).change is None


def test_the_breaks_are_counted_by_their_cause() -> None:
    book = make_book()
    for sent in (plan(), plan(pivot=_PIVOT), plan(pivot=_EDITED), plan(pivot=_EDITED, batches=(_BATCH,))):
        book.note_request(turn(), sent, None)
    book.note_request(turn(scope="other tools"), plan(pivot=_EDITED, batches=(_BATCH,)), None)
    activity = book.find("c")
    assert activity is not None
    totals = activity.totals
    assert (totals.compaction_breaks, totals.edit_breaks, totals.pruning_breaks) == (1, 1, 1)
    assert (totals.history_breaks, totals.cache_breaks) == (1, 4)
