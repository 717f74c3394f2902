"""State in front of a store that stays open: what one process knew, the next one finds."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.compaction.manual import Folded
from gateway.core.history.conversation import Conversation
from gateway.core.history.head import Head
from gateway.core.history.pivot import Mark
from gateway.core.limits.learned import Learned
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.estimate import Calibration, Meter
from gateway.state.records import Marker, render_record
from gateway.state.state import State
from gateway.store.fault import StoreError
from gateway.store.memory import MemoryStore
from tests.builders.chat import JSON, converse, make_batch, make_pivot

_TURN: list[JSON] = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "More."}]
_TALK: list[JSON] = [{"role": "user", "content": "Fix it."}, *_TURN * 5]


def talk(turns: int) -> Conversation:
    return converse(_TALK[: 1 + 2 * turns])


async def make_store() -> MemoryStore:
    store = MemoryStore()
    await store.open()
    return store


def make_state(store: MemoryStore, max_bytes: int = 1 << 20) -> State:
    return State(store, keep_seconds=60, max_bytes=max_bytes)


def make_head(received: Conversation, scope: str = "s", **fields: Any) -> Head:
    defaults: JSON = {
        "owner": "t",
        "key": received.key.hex(),
        "length": len(received.messages),
        "tools": "",
        "prompt_tokens": 10,
        "output_tokens": 1,
        "growth_tokens": 0.0,
        "pivot": None,
        "batches": (),
        "conversation": "c",
        "parent": None,
    }
    return Head(scope=scope, **(defaults | fields))


async def test_the_nearest_head_is_found_by_walking_back_from_the_end() -> None:
    state = make_state(await make_store())
    early, late = make_head(talk(1)), make_head(talk(3))
    state.save_head(early, is_worth_writing=True)
    state.save_head(late, is_worth_writing=True)
    assert state.find_head(talk(5), "s") == late
    assert state.find_head(talk(3), "s") == late
    assert state.find_head(talk(2), "s") == early
    assert state.find_head(talk(0), "s") is None


async def test_an_edited_history_finds_what_was_known_before_the_edit() -> None:
    state = make_state(await make_store())
    early = make_head(talk(1))
    state.save_head(early, is_worth_writing=True)
    state.save_head(make_head(talk(3)), is_worth_writing=True)
    edited = converse([*_TALK[:3], {"role": "assistant", "content": "Otherwise."}, *_TALK[4:]])
    assert state.find_head(edited, "s") == early


async def test_of_several_heads_at_one_place_the_one_of_the_same_scope_is_found() -> None:
    state = make_state(await make_store())
    main, side = make_head(talk(1), "main"), make_head(talk(1), "side", conversation="d")
    state.save_head(main, is_worth_writing=True)
    state.save_head(side, is_worth_writing=True)
    assert state.find_head(talk(2), "main") == main
    assert state.find_head(talk(2), "side") == side
    assert state.find_head(talk(2), "other") == side


async def test_many_side_calls_at_one_place_leave_the_newest_scopes() -> None:
    state = make_state(await make_store())
    for number in range(9):
        state.save_head(make_head(talk(1), f"s{number}"), is_worth_writing=True)
    found = [state.find_head(talk(1), f"s{number}") for number in range(9)]
    scopes = [head.scope for head in found if head is not None]
    assert scopes == ["s8"] * 5 + ["s5", "s6", "s7", "s8"]


async def test_after_a_restart_the_stored_head_is_found() -> None:
    store = await make_store()
    before = make_state(store)
    head = make_head(talk(3))
    before.save_head(make_head(talk(1), conversation="d"), is_worth_writing=True)
    before.save_head(head, is_worth_writing=True)
    before.flush_heads()
    after = make_state(store)
    assert after.find_head(talk(5), "s") is None
    assert await after.ask_head("t", talk(5), "s") == head
    assert after.find_head(talk(4), "s") == head


async def test_nothing_is_no_conversation_to_go_on_from() -> None:
    state = make_state(await make_store())
    state.save_head(make_head(converse([])), is_worth_writing=True)
    assert state.find_head(talk(2), "s") is None


async def test_a_head_that_memory_has_lost_is_found_in_the_store_again() -> None:
    state = make_state(await make_store(), max_bytes=3_000)
    assert await state.ask_head("t", talk(1), "s") is None
    head = make_head(talk(1))
    state.save_head(head, is_worth_writing=True)
    state.flush_heads()
    for number in range(5):
        state.save_head(
            make_head(converse([{"role": "user", "content": str(number)}]), conversation=str(number)),
            is_worth_writing=True,
        )
    assert state.find_head(talk(2), "s") is None
    assert await state.ask_head("t", talk(2), "s") == head


async def test_only_the_newest_head_of_a_conversation_is_written() -> None:
    store = await make_store()
    state = make_state(store)
    for turns in range(4):
        state.save_head(make_head(talk(turns)), is_worth_writing=True)
    assert await store.scan("head:") == []
    state.flush_heads()
    assert [key for key, _ in await store.scan("head:")] == [f"head:{talk(3).key.hex()}"]


async def test_somebody_elses_head_is_not_found() -> None:
    store = await make_store()
    conversation = talk(1)
    key = f"head:{conversation.key.hex()}"
    store.write(key, render_record("u", make_head(conversation, owner="u")), keep_seconds=60)
    assert await make_state(store).ask_head("t", conversation, "s") is None


async def test_a_head_under_another_key_is_not_believed() -> None:
    store = await make_store()
    key = f"head:{talk(1).key.hex()}"
    store.write(key, render_record("t", make_head(talk(2))), keep_seconds=60)
    assert await make_state(store).ask_head("t", talk(1), "s") is None


@pytest.mark.parametrize("value", [b"", b"garbage", b'{"version":9}'])
async def test_a_record_that_is_broken_is_as_if_it_were_not_there(value: bytes) -> None:
    store = await make_store()
    conversation = talk(2)
    pivot = make_pivot(conversation, 3)
    for kind in ("head", "pivot", "batch", "marker"):
        for key in conversation.chain:
            store.write(f"{kind}:{key.hex()}", value, keep_seconds=60)
    state = make_state(store)
    assert await state.ask_head("t", conversation, "s") is None
    await state.load_pivots("t", conversation, "b", pivot.key)
    await state.load_batches("t", [pivot.key])
    assert state.find_pivots(conversation) == []
    assert state.read_batches([pivot.key]) is None


async def test_the_first_to_go_on_from_a_head_claims_it_and_others_are_branches() -> None:
    state = make_state(await make_store())
    head = make_head(talk(1))
    assert state.claim_continuation(head, "first") == "first"
    assert state.claim_continuation(head, "second") == "first"
    assert state.claim_continuation(head, "first") == "first"


async def test_a_head_that_takes_the_place_of_another_one_is_followed_by_the_same() -> None:
    state = make_state(await make_store())
    first, again = make_head(talk(1)), make_head(talk(1))
    state.save_head(first, is_worth_writing=False)
    state.claim_continuation(first, "first")
    state.save_head(again, is_worth_writing=False)
    assert state.claim_continuation(again, "second") == "first"


async def test_who_only_asks_where_it_would_go_on_leaves_the_place_to_the_next_one() -> None:
    state = make_state(await make_store())
    head = make_head(talk(1))
    assert state.read_continuation(head, "command") == "command"
    assert state.claim_continuation(head, "next") == "next"
    assert state.read_continuation(head, "command") == "next"


async def test_a_saved_pivot_is_durable_and_every_longer_history_finds_it() -> None:
    store = await make_store()
    state = make_state(store)
    pivot = make_pivot(talk(2), 3)
    await state.save_pivot(pivot)
    assert [key for key, _ in await store.scan("pivot:")] == [f"pivot:{pivot.key}"]
    assert state.find_pivots(talk(4)) == [pivot]
    assert state.find_pivots(talk(0)) == []
    assert state.read_pivot(pivot.key) == pivot
    assert state.read_pivot(None) is None


async def test_a_pivot_that_cannot_be_made_durable_is_not_used() -> None:
    store = await make_store()
    await store.close()
    state = make_state(store)
    with pytest.raises(StoreError):
        await state.save_pivot(make_pivot(talk(2), 3))
    assert state.find_pivots(talk(4)) == []


async def test_after_a_restart_the_newest_pivot_and_the_one_that_a_head_names_are_found() -> None:
    store = await make_store()
    before = make_state(store)
    named, between, newest = (make_pivot(talk(5), covers) for covers in (3, 5, 7))
    for pivot in (named, between, newest):
        await before.save_pivot(pivot)
    after = make_state(store)
    await after.load_pivots("t", talk(5), "b", named.key)
    assert after.find_pivots(talk(5)) == [named, newest]


async def test_a_pivot_that_a_head_names_is_loaded_again_when_memory_has_lost_it() -> None:
    store = await make_store()
    state = make_state(store, max_bytes=1_200)
    first, second = make_pivot(talk(5), 3), make_pivot(talk(5), 5)
    await state.load_pivots("t", talk(5), "b", None)
    await state.save_pivot(first)
    await state.save_pivot(second)
    assert state.find_pivots(talk(5)) == [second]
    await state.load_pivots("t", talk(5), "b", first.key)
    assert first in state.find_pivots(talk(5))


async def test_somebody_elses_pivots_and_batches_are_not_found() -> None:
    store = await make_store()
    conversation = talk(2)
    pivot, batch = make_pivot(conversation, 3, owner="u"), make_batch(conversation, [Mark(1)], owner="u")
    store.write(f"pivot:{pivot.key}", render_record("u", pivot), keep_seconds=60)
    store.write(f"batch:{batch.key}", render_record("u", batch), keep_seconds=60)
    state = make_state(store)
    await state.load_pivots("t", conversation, "b", pivot.key)
    await state.load_batches("t", [batch.key])
    assert state.find_pivots(conversation) == []
    assert state.read_batches([batch.key]) is None


async def test_after_a_restart_the_batches_that_a_head_names_are_found_in_their_order() -> None:
    store = await make_store()
    before = make_state(store)
    batches = [make_batch(talk(turns), [Mark(1)], saved_tokens=turns) for turns in (1, 2)]
    for batch in batches:
        before.save_batch(batch)
    after = make_state(store)
    keys = [batch.key for batch in reversed(batches)]
    assert after.read_batches(keys) is None
    await after.load_batches("t", keys)
    assert after.read_batches(keys) == batches[::-1]
    assert after.read_batches([*keys, "00"]) is None


async def test_after_a_restart_a_marker_comes_back_with_its_head_and_can_be_dropped_for_good() -> None:
    store = await make_store()
    before = make_state(store)
    head = make_head(talk(2))
    marker = Marker(owner="t", key=head.key, length=5, auto=True, reason="overflow", created_seconds=1.0)
    before.save_head(head, is_worth_writing=True)
    before.flush_heads()
    before.save_marker(marker)
    after = make_state(store)
    # Our own are not taken by our own next request: their work is under way.
    assert before.take_marker(head.key) is None
    assert after.take_marker(head.key) is None
    await after.ask_head("t", talk(3), "s")
    assert after.take_marker(head.key) == marker
    assert after.take_marker(head.key) is None
    assert await store.scan("marker:") == []


async def test_a_marker_that_is_left_waits_for_the_next_request_here_or_after_a_restart() -> None:
    store = await make_store()
    here = make_state(store)
    head = make_head(talk(2))
    here.save_head(head, is_worth_writing=False)
    fields: JSON = {"owner": "t", "key": head.key, "length": 5, "auto": False, "reason": "manual"}
    marker = Marker(**fields, created_seconds=1.0, instructions="Keep names.")
    here.leave_marker(marker)
    here.flush_heads()
    there = make_state(store)
    await there.ask_head("t", talk(3), "s")
    assert there.take_marker(head.key) == marker
    assert here.take_marker(head.key) == marker
    assert here.take_marker(head.key) is None


async def test_a_pivot_made_by_hand_is_in_force_until_the_head_knows_of_it() -> None:
    state = make_state(await make_store())
    head = make_head(talk(3))
    made = make_pivot(talk(3), 3)
    await state.save_pivot(made)
    state.put_in_force("c", made, None)
    found = state.read_in_force("c", talk(4), head)
    # Its usage told of the array before.
    assert found is not None and (found.pivot, found.total_tokens) == (made.key, 0)
    assert state.read_in_force("another branch", talk(4), head) == head
    assert state.read_in_force("c", converse([{"role": "user", "content": "Else."}]), head) == head
    knowing = make_head(talk(4), pivot=made.key)
    assert state.read_in_force("c", talk(5), knowing) == knowing
    assert state.read_in_force("c", talk(5), head) == head


async def test_a_pivot_made_by_hand_is_in_force_after_a_restart() -> None:
    store = await make_store()
    before, head, made = make_state(store), make_head(talk(3)), make_pivot(talk(3), 3)
    before.put_in_force("c", made, head)
    before.flush_heads()
    found = await make_state(store).ask_head("t", talk(4), "s")
    assert found is not None and (found.pivot, found.total_tokens) == (made.key, 0)


async def test_a_command_that_was_carried_out_is_known_after_a_restart_and_to_its_tenant_alone() -> None:
    store = await make_store()
    make_state(store).save_folded("t", "ab", Folded(3, 2_000, 900))
    again = make_state(store)
    assert await again.load_folded("t", "ab") == Folded(3, 2_000, 900)
    assert await again.load_folded("other", "ab") is None
    assert await again.load_folded("t", "cd") is None


async def test_calibrations_are_kept_for_each_tenant_upstream_model_and_estimator() -> None:
    store = await make_store()
    state = make_state(store)
    known = Calibration(2.5, 3, (2.5, 2.4, 2.6))
    meter = Meter("up", "model", "tiktoken")
    state.save_calibration("t", meter, known)
    after = make_state(store)
    assert await after.load_calibration("t", meter) == known
    assert after.read_calibration("t", meter) == known
    others = [
        ("u", meter),
        ("t", Meter("upm", "odel", "tiktoken")),
        ("t", Meter("up", "other", "tiktoken")),
        ("t", Meter("up", "model", "chars")),
    ]
    for owner, other in others:
        assert await after.load_calibration(owner, other) == Calibration()
        assert after.read_calibration(owner, other) == Calibration()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, False),
        ({"prompt_tokens": 1_090}, False),
        ({"prompt_tokens": 1_120}, True),
        ({"prompt_tokens": 880}, True),
        ({"pivot": "aa"}, True),
        ({"batches": ("bb",)}, True),
        ({"conversation": "other"}, True),
        ({"scope": "other"}, True),
    ],
)
async def test_a_head_is_news_where_it_says_more_than_the_written_one(change: JSON, expected: bool) -> None:
    state = make_state(await make_store())
    written = replace(make_head(talk(2)), prompt_tokens=1_000, output_tokens=0)
    assert state.is_news(written)
    state.save_head(written, is_worth_writing=True)
    assert state.is_news(replace(written, key="00", length=9, **change)) is expected


async def test_a_step_that_is_short_beside_the_way_to_the_line_is_no_news() -> None:
    state = make_state(await make_store())
    written = replace(make_head(talk(2)), prompt_tokens=1_000, output_tokens=0)
    state.save_head(written, is_worth_writing=True)
    later = replace(written, prompt_tokens=1_400)
    assert [state.is_news(later, line) for line in (0, 3_900, 4_100)] == [True, True, False]


async def test_a_head_that_was_written_long_ago_is_news() -> None:
    """Or it would be dropped with what else nobody used."""
    store = MemoryStore()
    await store.open()
    state = State(store, keep_seconds=0.0, max_bytes=100_000)
    head = make_head(talk(2))
    state.save_head(head, is_worth_writing=True)
    assert state.is_news(head)


async def test_a_pivot_that_is_used_after_a_restart_lives_on() -> None:
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    await store.open()
    state = make_state(store)
    used, unused = make_pivot(talk(4), 3), make_pivot(talk(4), 5)
    await state.save_pivot(used)
    await state.save_pivot(unused)
    now[0] = 50.0
    make_state(store).refresh(used, ())
    now[0] = 70.0
    assert [key for key, _ in await store.scan("pivot:")] == [f"pivot:{used.key}"]


async def test_what_is_known_stays_within_its_bound() -> None:
    state = make_state(await make_store(), max_bytes=5_000)
    for number in range(50):
        conversation = converse([{"role": "user", "content": str(number)}, *_TURN])
        state.save_head(make_head(conversation, conversation=str(number)), is_worth_writing=True)
        await state.save_pivot(make_pivot(conversation, 2, summary="x" * 200))
        state.save_batch(make_batch(conversation, [Mark(1)]))
    assert state.find_head(conversation, "s") is not None
    assert max(state._heads.size_bytes, state._pivots.size_bytes, state._batches.size_bytes) <= 5_000


async def test_what_refusals_taught_survives_a_restart_and_belongs_to_its_tenant() -> None:
    store = await make_store()
    learned = Learned(owner="t", proven=Limits(context=8_000), created_seconds=1.0)
    make_state(store).save_learned("up", "model", learned)
    after = make_state(store)
    assert after.read_learned("t", "up", "model") is None
    assert await after.load_learned("t", "up", "model") == learned
    assert after.read_learned("t", "up", "model") == learned
    for owner, upstream, model in [("u", "up", "model"), ("t", "upm", "odel"), ("t", "up", "m")]:
        assert await after.load_learned(owner, upstream, model) == Learned(owner=owner)


async def test_what_is_learned_while_the_store_is_asked_is_not_lost() -> None:
    learned = Learned(owner="t", proven=Limits(context=8_000), created_seconds=1.0)

    class SlowStore(MemoryStore):
        async def read(self, key: str) -> bytes | None:
            found = await super().read(key)
            state.save_learned("up", "model", learned)
            return found

    store = SlowStore()
    await store.open()
    state = make_state(store)
    assert await state.load_learned("t", "up", "model") == learned
