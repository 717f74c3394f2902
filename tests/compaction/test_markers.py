"""What a marker says, and the head that leads to it."""

from gateway.compaction.markers import make_marker, save_marker
from gateway.core.compaction.request import CompactionReason
from tests.builders.compaction import head_of, receive, turn_of
from tests.builders.state import look_for_marker, make_state, make_store

_TALK = receive(2)


def test_only_what_a_person_asked_for_is_not_automatic() -> None:
    asked = make_marker("t", "ab", 3, CompactionReason.MANUAL, "Keep names.")
    assert (asked.auto, asked.instructions) == (False, "Keep names.")
    due = make_marker("t", "ab", 3, CompactionReason.COST)
    assert (due.auto, due.reason, due.instructions) == (True, "cost", "")


async def test_a_marker_is_stored_with_the_head_that_leads_to_it() -> None:
    store = await make_store()
    state = make_state(store)
    state.heads.hold(head_of(_TALK))
    marker = save_marker(state, turn_of(_TALK), CompactionReason.COST)
    state.heads.flush()
    after = make_state(store)
    assert await after.heads.load("t", _TALK.conversation, "scope") == head_of(_TALK)
    await look_for_marker(after, _TALK.conversation)
    assert await after.tasks.take("t", marker.key) == marker
