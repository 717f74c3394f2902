"""What belongs to one conversation is found, in memory and in the store; what belongs to others is not."""

from dataclasses import replace

from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.cleared_results import ResultHashes, ResultHashesRecord
from gateway.core.history.pivot import Mark
from gateway.core.history.versions import edit_pivot
from gateway.state import State
from gateway.state.conversation_traces import (
    ConversationTraces,
    find_newest_head,
    find_stored,
    trace_heads,
)
from gateway.state.records import Marker
from gateway.store.keys import make_tag
from tests.builders.chat import converse, make_batch, make_pivot
from tests.builders.state import make_head, make_state, make_store, stored_key
from tests.state.talk import MESSAGES, talk

_TAG = make_tag("t")
_OTHER = converse([*MESSAGES[:3], {"role": "assistant", "content": "Another way."}, *MESSAGES[1:5]])


async def fill(state: State) -> tuple[str, str, str]:
    """The keys of a conversation's head, pivot and batch; another one goes on from its first messages."""
    pivot, batch = make_pivot(talk(3), 3), make_batch(talk(3), [Mark(5)])
    await state.pivots.save(pivot)
    await state.pivots.save_batch_durably(batch)
    head = make_head(talk(3), pivot=pivot.key, batches=(batch.key,), conversation="ab")
    await state.heads.save_durably(head)
    state.heads.hold(head)
    other = make_pivot(_OTHER, 5)
    await state.pivots.save(other)
    await state.heads.save_durably(make_head(_OTHER, pivot=other.key, conversation="cd"))
    return head.key, pivot.key, batch.key


async def test_memory_and_store_name_the_same() -> None:
    store = await make_store()
    state = make_state(store)
    head, pivot, batch = await fill(state)
    known = state.trace("ab")
    assert known == ConversationTraces(
        links=frozenset({head}), pivots=frozenset({pivot}), batches=frozenset({batch})
    )
    assert (await find_stored(store, _TAG, "ab", ConversationTraces())).traces == known
    assert state.trace("ef") == ConversationTraces() == trace_heads([])


async def test_all_records_of_a_conversation_are_named_and_none_of_another() -> None:
    store = await make_store()
    state = make_state(store)
    head, key, batch = await fill(state)
    pivot = state.pivots.find(key)
    assert pivot is not None
    async with state.edits.hold("t", [key]) as leases:
        await state.edits.save(leases[key], pivot, edit_pivot(pivot, "Mine.", 0, 0, 1.0))
    marker = Marker(owner="t", key=head, length=7, auto=False, reason="manual", created_seconds=1.0)
    state.tasks.save_marker(marker)
    state.tasks.save_marker(replace(marker, key=_OTHER.key.hex()))
    hashes = ResultHashes(pivot=key, conversation="ab", results="00" * 32)
    state.result_hashes.save(ResultHashesRecord(owner="t", key="0a", covers=3, outlines=(hashes,)))
    found = await find_stored(store, _TAG, "ab", ConversationTraces())
    assert set(found.names) == {
        stored_key("head", head),
        stored_key("pivot", key),
        stored_key("versions", key),
        stored_key("batch", batch),
        stored_key("marker", head),
        stored_key("outline", "0a"),
    }


async def test_the_original_of_a_copy_says_the_same_and_goes_with_it() -> None:
    store = await make_store()
    state = make_state(store)
    _, key, _ = await fill(state)
    pivot = state.pivots.find(key)
    assert pivot is not None
    await state.pivots.save(replace(pivot, key="0b" * 32))
    await state.pivots.save(replace(pivot, origin="0b" * 32))
    found = await find_stored(store, _TAG, "ab", ConversationTraces())
    assert stored_key("pivot", "0b" * 32) in found.names


async def test_what_is_known_beside_the_store_is_looked_for() -> None:
    store = await make_store()
    state = make_state(store)
    prepared = make_pivot(talk(4), 7)
    await state.pivots.save(prepared)
    known = ConversationTraces(pivots=frozenset({prepared.key, "0c" * 32}))
    assert (await find_stored(store, _TAG, "ab", known)).names == [stored_key("pivot", prepared.key)]


async def test_a_conversation_leaves_memory_and_others_stay() -> None:
    state = make_state(await make_store())
    head, _, _ = await fill(state)
    for name, conversation in (("ab", talk(3)), ("cd", _OTHER)):
        state.histories.record("t", name, f"end of {name}", conversation)
    marker = Marker(owner="t", key=head, length=7, auto=False, reason="manual", created_seconds=1.0)
    state.tasks.leave_marker(marker)
    state.pivots.activate_manual(make_pivot(talk(3), 3), None)
    state.forget_conversation(_TAG, "ab", state.trace("ab"))
    assert state.heads.find(talk(3), "s") is None
    assert state.pivots.list_on_chain(talk(3)) == []
    assert state.histories.find("end of ab") is None and head not in state.tasks.waiting
    assert len(state.pivots.list_on_chain(_OTHER)) == 1
    assert state.histories.find("end of cd") is not None


async def test_the_newest_head_of_a_conversation_is_the_one_that_was_answered_last() -> None:
    store = await make_store()
    state = make_state(store)
    for length, answered_seconds in ((3, 10.0), (5, 30.0), (7, 20.0)):
        head = make_head(talk(length), conversation="ab")
        head.ledger = BranchLedger(answered_seconds=answered_seconds)
        await state.heads.save_durably(head)
    await state.heads.save_durably(make_head(_OTHER, conversation="cd"))
    found = await find_newest_head(store, _TAG, "ab")
    assert found is not None and found.length == len(talk(5).messages)
    assert await find_newest_head(store, _TAG, "ef") is None
    assert await find_newest_head(store, make_tag("u"), "ab") is None
