import asyncio
from dataclasses import replace

import pytest

from gateway.state.heads import claim_continuation, find_continuation
from gateway.state.records import render_record
from gateway.store.keys import make_tag
from tests.builders.chat import JSON, converse
from tests.builders.state import make_head, make_state, make_store, stored_key
from tests.state.talk import MESSAGES, talk
from tests.toy.shared_store import SharedStore, ToyServer


async def test_the_nearest_head_is_found_by_walking_back_from_the_end() -> None:
    heads = make_state(await make_store()).heads
    early, late = make_head(talk(1)), make_head(talk(3))
    heads.save(early)
    heads.save(late)
    assert heads.find(talk(5), "s") == late
    assert heads.find(talk(3), "s") == late
    assert heads.find(talk(2), "s") == early
    assert heads.find(talk(0), "s") is None


async def test_an_edited_history_finds_what_was_known_before_the_edit() -> None:
    heads = make_state(await make_store()).heads
    early = make_head(talk(1))
    heads.save(early)
    heads.save(make_head(talk(3)))
    edited = converse([*MESSAGES[:3], {"role": "assistant", "content": "Otherwise."}, *MESSAGES[4:]])
    assert heads.find(edited, "s") == early


async def test_of_several_heads_at_one_place_the_one_of_the_same_scope_is_found() -> None:
    heads = make_state(await make_store()).heads
    main, side = make_head(talk(1), "main"), make_head(talk(1), "side", conversation="d")
    heads.save(main)
    heads.save(side)
    assert heads.find(talk(2), "main") == main
    assert heads.find(talk(2), "side") == side
    assert heads.find(talk(2), "other") == side


async def test_many_side_calls_at_one_place_leave_the_newest_scopes() -> None:
    heads = make_state(await make_store()).heads
    for number in range(9):
        heads.save(make_head(talk(1), f"s{number}"))
    found = [heads.find(talk(1), f"s{number}") for number in range(9)]
    scopes = [head.scope for head in found if head is not None]
    assert scopes == ["s8"] * 5 + ["s5", "s6", "s7", "s8"]


async def test_the_past_holds_the_heads_of_one_scope_that_have_a_usage() -> None:
    heads = make_state(await make_store()).heads
    first, last = make_head(talk(1)), make_head(talk(4))
    for head in (last, make_head(talk(2), "other"), make_head(talk(3), prompt_tokens=0), first):
        heads.hold(head)
    assert heads.find_past(talk(5), "s") == [first, last]


async def test_heads_are_found_by_the_pivots_they_were_sent_with() -> None:
    heads = make_state(await make_store()).heads
    one, two = make_head(talk(1), pivot="aa"), make_head(talk(2), pivot="bb")
    for head in (one, two, make_head(talk(3), pivot="cc"), make_head(talk(4))):
        heads.hold(head)
    assert sorted(heads.find_sent_with({"aa", "bb"}), key=lambda head: head.length) == [one, two]


async def test_after_a_restart_the_stored_head_is_found() -> None:
    store = await make_store()
    before = make_state(store).heads
    head = make_head(talk(3))
    before.save(make_head(talk(1), conversation="d"))
    before.save(head)
    before.flush()
    after = make_state(store).heads
    assert after.find(talk(5), "s") is None
    assert await after.load("t", talk(5), "s") == head
    assert after.find(talk(4), "s") == head


async def test_a_head_that_is_only_held_is_not_stored() -> None:
    store = await make_store()
    heads = make_state(store).heads
    heads.hold(make_head(talk(2)))
    heads.flush()
    assert heads.find(talk(2), "s") == make_head(talk(2))
    assert await store.scan("head:") == []


async def test_heads_that_are_held_can_be_saved_by_their_key() -> None:
    store = await make_store()
    heads = make_state(store).heads
    head = make_head(talk(2))
    heads.hold(head)
    heads.save_held(head.key)
    heads.save_held("00")
    heads.flush()
    assert [key for key, _ in await store.scan("head:")] == [stored_key("head", head.key)]


async def test_the_head_of_an_empty_conversation_is_not_kept() -> None:
    heads = make_state(await make_store()).heads
    heads.save(make_head(converse([])))
    assert heads.find(talk(2), "s") is None


async def test_a_head_that_memory_has_lost_is_found_in_the_store_again() -> None:
    heads = make_state(await make_store(), max_bytes=3_000).heads
    assert await heads.load("t", talk(1), "s") is None
    head = make_head(talk(1))
    heads.save(head)
    heads.flush()
    for number in range(5):
        other = converse([{"role": "user", "content": str(number)}])
        heads.save(make_head(other, conversation=str(number)))
    assert heads.find(talk(2), "s") is None
    assert await heads.load("t", talk(2), "s") == head


async def test_only_the_newest_head_of_a_conversation_is_written() -> None:
    store = await make_store()
    heads = make_state(store).heads
    for turns in range(4):
        heads.save(make_head(talk(turns)))
    assert await store.scan("head:") == []
    heads.flush()
    assert [key for key, _ in await store.scan("head:")] == [stored_key("head", talk(3).key.hex())]


async def test_the_head_of_another_owner_is_not_found() -> None:
    store = await make_store()
    conversation = talk(1)
    key = stored_key("head", conversation.key.hex())
    store.write(key, render_record("u", make_head(conversation, owner="u")), keep_seconds=60)
    assert await make_state(store).heads.load("t", conversation, "s") is None


async def test_the_first_request_to_go_on_from_a_head_claims_it_and_others_are_branches() -> None:
    head = make_head(talk(1))
    assert claim_continuation(head, "first") == "first"
    assert claim_continuation(head, "second") == "first"
    assert claim_continuation(head, "first") == "first"


async def test_a_head_that_takes_the_place_of_another_one_keeps_its_continuation() -> None:
    heads = make_state(await make_store()).heads
    first, again = make_head(talk(1)), make_head(talk(1))
    heads.hold(first)
    claim_continuation(first, "first")
    heads.hold(again)
    assert claim_continuation(again, "second") == "first"


async def test_a_command_sees_where_it_would_go_on_and_claims_nothing() -> None:
    head = make_head(talk(1))
    assert find_continuation(head, "command") == "command"
    assert claim_continuation(head, "next") == "next"
    assert find_continuation(head, "command") == "next"


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
async def test_a_head_that_says_more_than_the_written_one_is_worth_saving(
    change: JSON, expected: bool
) -> None:
    heads = make_state(await make_store()).heads
    written = replace(make_head(talk(2)), prompt_tokens=1_000, output_tokens=0)
    assert heads.is_worth_saving(written)
    heads.save(written)
    assert heads.is_worth_saving(replace(written, key="00", length=9, **change)) is expected


async def test_a_step_that_is_short_beside_the_way_to_the_line_is_not_worth_saving() -> None:
    heads = make_state(await make_store()).heads
    written = replace(make_head(talk(2)), prompt_tokens=1_000, output_tokens=0)
    heads.save(written)
    later = replace(written, prompt_tokens=1_400)
    assert [heads.is_worth_saving(later, line) for line in (0, 3_900, 4_100)] == [True, True, False]


async def test_a_head_that_was_written_long_ago_is_worth_saving_again() -> None:
    now = [0.0]
    heads = make_state(await make_store(), keep_seconds=40, clock=lambda: now[0]).heads
    head = make_head(talk(2))
    heads.save(head)
    now[0] = 9.0
    assert not heads.is_worth_saving(head)
    now[0] = 10.0
    assert heads.is_worth_saving(head)


async def test_heads_stay_within_their_bound() -> None:
    heads = make_state(await make_store(), max_bytes=5_000).heads
    for number in range(50):
        conversation = converse([{"role": "user", "content": str(number)}])
        heads.save(make_head(conversation, conversation=str(number)))
    assert heads.find(conversation, "s") is not None
    assert heads.size_bytes <= 5_000


async def test_a_durable_head_is_in_the_store_at_once_and_names_what_no_death_can_lose() -> None:
    store = await make_store()
    heads = make_state(store).heads
    head = make_head(talk(3), pivot="aa", batches=("bb",))
    assert not heads.is_durable("c", "aa", ("bb",))
    await heads.save_durably(head)
    assert heads.is_durable("c", "aa", ("bb",))
    assert heads.find_at(head.key, "s") is None
    heads.hold(head)
    assert heads.find_at(head.key, "s") == head and heads.find_at(head.key, "other") is None
    assert not heads.is_durable("c", "aa", ("bb",), ("cc",))
    assert not heads.is_durable("c", "aa", ()) and not heads.is_durable("d", "aa", ("bb",))
    # Another process finds it, and knows that it is durable.
    after = make_state(store).heads
    assert await after.load("t", talk(5), "s") == head
    assert after.is_durable("c", "aa", ("bb",))


async def test_a_head_that_lingers_does_not_take_the_place_of_a_durable_one() -> None:
    store = await make_store()
    heads = make_state(store).heads
    heads.save(make_head(talk(3)))
    await heads.save_durably(make_head(talk(3), pivot="aa"))
    heads.flush()
    found = await make_state(store).heads.load("t", talk(3), "s")
    assert found is not None and found.pivot == "aa"


async def open_shared(server: ToyServer) -> SharedStore:
    store = server.connect()
    await store.open()
    return store


async def test_another_process_finds_a_head_that_was_just_saved_and_one_that_says_little_more() -> None:
    server = ToyServer()
    here, there = [make_state(await open_shared(server)).heads for _ in range(2)]
    saved, step = make_head(talk(2)), make_head(talk(3))
    here.save(saved)
    here.hold_step(step)
    await asyncio.sleep(0.001)
    assert await there.load("t", talk(2), "s") == saved
    assert await there.load("t", talk(4), "s") == step


async def test_a_step_lives_an_hour_and_takes_nobodys_place() -> None:
    now = [0.0]
    server = ToyServer(lambda: now[0])
    heads = make_state(await open_shared(server), keep_seconds=86_400.0).heads
    lasting = make_head(talk(2), pivot="aa")
    await heads.save_durably(lasting)
    heads.hold_step(lasting)
    heads.hold_step(make_head(talk(3), pivot="aa"))
    heads.flush()
    await asyncio.sleep(0.001)
    now[0] = 4_000.0
    later = make_state(await open_shared(server)).heads
    assert await later.load("t", talk(5), "s") == lasting


async def test_in_a_store_of_one_process_a_step_is_in_memory_alone() -> None:
    store = await make_store()
    heads = make_state(store).heads
    heads.hold_step(make_head(talk(3)))
    heads.flush()
    assert heads.find(talk(3), "s") == make_head(talk(3)) and await store.scan("head:") == []


async def test_the_head_of_another_process_that_names_something_else_wins_as_a_whole() -> None:
    server = ToyServer()
    one, other = [await open_shared(server) for _ in range(2)]
    here, there = make_state(one).heads, make_state(other).heads
    here.save(make_head(talk(3), pivot="aa", batches=("bb",)))
    await asyncio.sleep(0.001)
    there.save(make_head(talk(3), pivot="cc", prompt_tokens=5))
    await asyncio.sleep(0.001)
    found = await here.load("t", talk(4), "s")
    assert found is not None and (found.pivot, found.batches, found.prompt_tokens) == ("cc", (), 5)


async def test_a_stored_head_without_its_usage_does_not_take_the_place_of_one_that_has_it() -> None:
    store = await make_store()
    heads = make_state(store).heads
    await heads.save_durably(make_head(talk(3), pivot="aa", prompt_tokens=0))
    heads.hold(make_head(talk(3), pivot="aa"))
    found = await heads.load("t", talk(3), "s")
    assert found is not None and found.prompt_tokens == 10


async def test_in_a_new_generation_nothing_is_known_to_be_stored_and_everything_to_be_looked_at() -> None:
    store = await open_shared(ToyServer())
    heads, head = make_state(store).heads, make_head(talk(3), pivot="aa")
    heads.save(head)
    await heads.save_durably(head)
    assert heads.is_current(head) and heads.is_durable("c", "aa", ())
    assert not heads.is_worth_saving(head)
    await store.mend()
    assert not heads.is_current(head) and not heads.is_durable("c", "aa", ())
    assert heads.is_worth_saving(head)
    heads.hold(make_head(talk(4)))
    assert heads.is_current(make_head(talk(4)))


async def test_a_tenants_heads_are_forgotten_also_those_that_wait_to_be_written() -> None:
    store = await make_store()
    heads = make_state(store).heads
    heads.save(make_head(talk(3)))
    await heads.save_durably(make_head(talk(2)))
    heads.forget(make_tag("u"))
    assert heads.find(talk(3), "s") is not None
    heads.forget(make_tag("t"))
    assert heads.find(talk(3), "s") is None and not heads.is_durable("c", None, ())
    await store.purge(make_tag("t"))
    heads.flush()
    assert await store.scan("head:") == []
