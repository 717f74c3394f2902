"""A pivot is found again where a client has cleared old results itself, and nowhere else."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bounds.lanes import Lanes
from gateway.conversations import cleared_results
from gateway.conversations.recognizer import Received
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.cleared_results import PLACEHOLDERS
from gateway.core.history.head import Head
from gateway.core.history.pivot import Pivot
from gateway.state import State
from gateway.store import StoreError
from gateway.store.memory import MemoryStore
from tests.builders.chat import JSON, conversations, make_pivot, make_turn, read, render
from tests.builders.state import make_state, make_store

_CLEARED = PLACEHOLDERS[0]
_OWN = "(gone, ünlike others)"
_COVERS = 7
_LEDGER = BranchLedger(answered_seconds=9.0, has_cached=True, rent_tokens=5.0, base_tokens=7.0, pivot="ab")
_TOOLS = read(render([])).body.envelope.tools.hex()


def step(number: int, result: Any) -> list[JSON]:
    function = {"name": "look", "arguments": "{}"}
    call = {"id": f"look:{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"look:{number}", "content": result},
    ]


def talk(*results: Any) -> list[JSON]:
    """A task, and a step for each result."""
    steps = [message for number, result in enumerate(results) for message in step(number, result)]
    return [{"role": "user", "content": "Fix it."}, *steps]


_WHOLE = talk("one", "two", "three", "four", "five")


class _Filling(MemoryStore):
    is_full = False

    async def write_durably(self, key: str, value: bytes, *, keep_seconds: float) -> None:
        if self.is_full:
            raise StoreError("full")
        await super().write_durably(key, value, keep_seconds=keep_seconds)


def receive(messages: list[JSON], tenant: str = "t") -> Received:
    return read(render(messages), tenant)


async def compact(
    state: State, messages: list[JSON], conversation: str = "c", covers: int = _COVERS
) -> Pivot:
    """As after a compaction: the pivot, what is recorded beside it, and a head that was sent with it."""
    received = receive(messages)
    pivot = make_pivot(received.conversation, covers, saved_tokens=5)
    await state.pivots.save(pivot)
    await cleared_results.record(state, make_turn(received, conversation_id=conversation), pivot)
    state.heads.save(make_head(received, pivot, conversation))
    return pivot


def make_head(received: Received, pivot: Pivot, conversation: str) -> Head:
    return Head(
        owner="t",
        key=received.conversation.key.hex(),
        length=len(received.conversation.messages),
        scope="s",
        tools=_TOOLS,
        prompt_tokens=10,
        output_tokens=1,
        growth_tokens=7.0,
        pivot=pivot.key,
        batches=(),
        conversation=conversation,
        parent="p",
        ledger=_LEDGER,
    )


async def ask(state: State, messages: list[JSON], tenant: str = "t") -> Head | None:
    received = receive(messages, tenant)
    return await ask_beyond(state, received, state.heads.find(received.conversation, "s"))


async def ask_beyond(state: State, received: Received, nearest: Head | None) -> Head | None:
    split = await cleared_results.split(Lanes(), received, nearest, _OWN)
    if split is None:
        return None
    known = await state.result_hashes.load(received.owner, split.keys)
    return await cleared_results.find(state, received, "s", split, known)


def is_active(state: State, messages: list[JSON], head: Head | None, pivot: Pivot) -> bool:
    """Does the head name the same summary, under a key of this conversation?"""
    conversation = receive(messages).conversation
    known = state.pivots.find(head.pivot) if head is not None else None
    if head is None or known is None:
        return False
    key = conversation.chain[pivot.covers].hex()
    return head.key == known.key == key and known.summary == pivot.summary


@pytest.mark.parametrize("text", [*PLACEHOLDERS, _OWN])
@pytest.mark.parametrize("gone", [1, 2, 3])
async def test_a_client_that_clears_results_keeps_its_pivot_and_its_id(text: str, gone: int) -> None:
    state = make_state(await make_store())
    pivot = await compact(state, _WHOLE)
    cleared = talk(*[text] * gone, *["one", "two", "three", "four", "five", "six"][gone:])
    head = await ask(state, cleared)
    assert is_active(state, cleared, head, pivot)
    assert head is not None and (head.conversation, head.parent, head.growth_tokens) == ("c", "p", 7.0)
    assert (head.tools, head.prompt_tokens, head.batches) == (_TOOLS, 0, ())


async def test_the_pivot_is_found_after_a_restart_and_the_new_id_names_the_old_one() -> None:
    store = await make_store()
    pivot = await compact(make_state(store), _WHOLE)
    state = make_state(store)
    cleared = talk(_CLEARED, _CLEARED, "three", "four", "five", "six")
    head = await ask(state, cleared)
    assert is_active(state, cleared, head, pivot)
    # With other tools than the request's, so that whoever goes on gets an id of its own.
    assert head is not None and (head.conversation, head.tools) == ("c", "")


async def test_a_pivot_that_was_found_again_survives_a_restart() -> None:
    store = await make_store()
    before = make_state(store)
    pivot = await compact(before, _WHOLE)
    cleared = talk(_CLEARED, "two", "three", "four", "five", "six")
    head = await ask(before, cleared)
    before.heads.flush()
    state = make_state(store)
    again = await state.heads.load("t", receive(cleared).conversation, "s")
    assert again == head and again is not None and again.pivot is not None
    known = await state.pivots.load("t", again.pivot)
    assert known is not None and known.summary == pivot.summary


async def test_a_client_may_clear_more_results_later() -> None:
    state = make_state(await make_store())
    pivot = await compact(state, _WHOLE)
    for gone in (1, 2, 3):
        cleared = talk(*[_CLEARED] * gone, *["one", "two", "three", "four", "five", "six"][gone:])
        head = await ask(state, cleared)
        assert is_active(state, cleared, head, pivot)
        assert head is not None and head.conversation == "c"
        # What the branch has cost goes on; this prompt is in no cache.
        assert head.ledger == replace(_LEDGER, answered_seconds=0.0)


async def test_the_id_is_a_new_one_if_two_branches_went_on_from_the_pivot() -> None:
    state = make_state(await make_store())
    pivot = await compact(state, _WHOLE, "c")
    other = receive([*_WHOLE, *step(5, "other")])
    state.heads.save(make_head(other, pivot, "d"))
    cleared = talk(_CLEARED, "two", "three", "four", "five", "six")
    head = await ask(state, cleared)
    assert is_active(state, cleared, head, pivot)
    assert head is not None and (head.conversation, head.tools) == ("c", "")


async def test_no_pivot_is_used_if_the_cleared_result_may_be_either_of_two() -> None:
    state = make_state(await make_store())
    await compact(state, talk("one", "two", "three", "four"), "c")
    second = await compact(state, talk("one", "other", "three", "four"), "d")
    assert await ask(state, talk("one", _CLEARED, "three", "four", "five")) is None
    cleared = talk(_CLEARED, "other", "three", "four", "five")
    assert is_active(state, cleared, await ask(state, cleared), second)


async def test_a_smaller_pivot_is_found_where_the_larger_one_does_not_fit() -> None:
    state = make_state(await make_store())
    small = await compact(state, _WHOLE, covers=3)
    await compact(state, _WHOLE, covers=7)
    cleared = talk(_CLEARED, "two", "edited", "four", "five", "six")
    assert is_active(state, cleared, await ask(state, cleared), small)


async def test_the_pivot_itself_is_found_if_only_later_results_were_cleared() -> None:
    store = await make_store()
    pivot = await compact(make_state(store), _WHOLE)
    state = make_state(store)
    head = await ask(state, talk("one", "two", "three", _CLEARED, "five", "six"))
    assert head is not None and head.pivot == pivot.key and state.pivots.find(pivot.key) == pivot


async def test_the_open_group_is_never_covered() -> None:
    state = make_state(await make_store())
    await compact(state, _WHOLE, covers=7)
    # The third step is the newest now: the client went back.
    assert await ask(state, talk(_CLEARED, "two", "three")) is None


async def test_a_head_that_is_nearer_is_left_alone() -> None:
    state = make_state(await make_store())
    await compact(state, _WHOLE)
    cleared = talk(_CLEARED, "two", "three", "four", "five")
    received = receive(cleared)
    nearer = make_head(received, make_pivot(received.conversation, 3), "c")
    longer = receive([*cleared, *step(5, "six"), *step(6, "seven")])
    assert await ask_beyond(state, longer, nearer) is None


async def test_nothing_is_found_without_the_record_or_the_pivot() -> None:
    cleared = talk(_CLEARED, "two", "three", "four", "five", "six")
    for prefix in ("outline:", "pivot:"):
        store = await make_store()
        await compact(make_state(store), _WHOLE)
        for key, _ in await store.scan(prefix):
            store.delete(key)
        assert await ask(make_state(store), cleared) is None


async def test_a_pivot_that_cannot_be_made_durable_is_not_used() -> None:
    store = _Filling()
    await store.open()
    state = make_state(store)
    await compact(state, _WHOLE)
    cleared = talk(_CLEARED, "two", "three", "four", "five", "six")
    store.is_full = True
    assert await ask(state, cleared) is None
    store.is_full = False
    assert await ask(state, cleared) is not None


async def test_a_pivot_over_no_results_leaves_no_record() -> None:
    store = await make_store()
    await compact(make_state(store), _WHOLE, covers=1)
    assert await store.scan("outline:") == []


@pytest.mark.parametrize(
    "changed",
    [
        talk("other", "two", "three", "four", "five", "six"),
        talk(f"{_CLEARED}.", "two", "three", "four", "five", "six"),
        talk(_CLEARED, "other", "three", "four", "five", "six"),
        [{"role": "user", "content": _CLEARED}, *_WHOLE[1:]],
        [{"role": "user", "content": _CLEARED}, *talk(_CLEARED, "two", "three", "four", "five", "six")[1:]],
        talk(_CLEARED, "two", "three", "four", "five", "six")[1:],
        [*_WHOLE[:2], {"role": "tool", "tool_call_id": "look:9", "content": _CLEARED}, *_WHOLE[3:]],
        [*_WHOLE[:2], {**_WHOLE[2], "content": _CLEARED, "x-unknown": 1}, *_WHOLE[3:]],
    ],
    ids=[
        "another text",
        "more than a placeholder",
        "one cleared, one edited",
        "user",
        "both",
        "no task",
        "id",
        "field",
    ],
)
async def test_anything_else_that_changed_is_another_conversation(changed: list[JSON]) -> None:
    state = make_state(await make_store())
    await compact(state, _WHOLE)
    assert await ask(state, changed) is None


async def test_another_tenant_finds_nothing() -> None:
    state = make_state(await make_store())
    await compact(state, _WHOLE)
    cleared = talk(_CLEARED, "two", "three", "four", "five", "six")
    assert await ask(state, cleared, tenant="u") is None
    assert await ask(state, cleared) is not None


@given(conversations(min_turns=3), st.data())
async def test_an_active_pivot_always_stands_for_the_messages_that_it_covers(
    messages: list[JSON], data: st.DataObject
) -> None:
    """Any results cleared, and perhaps one message changed: it is found if none that it covers changed."""
    received = receive(messages)
    end = len(received.conversation.messages)
    covers = data.draw(st.integers(1, end))
    state = make_state(await make_store())
    pivot = await compact(state, messages, covers=covers)
    now = [
        {**message, "content": _CLEARED}
        if message["role"] == "tool" and data.draw(st.booleans())
        else message
        for message in messages
    ]
    leading = len(received.conversation.leading)
    at = data.draw(st.one_of(st.none(), st.integers(leading, len(messages) - 1)))
    if at is not None:
        now[at] = {**now[at], "x-changed": 1}
    now += step(900, "more")
    head = await ask(state, now)
    covered = range(leading, leading + covers)
    covers_results = any(now[i]["role"] == "tool" for i in covered)
    is_cleared = any(one["role"] == "tool" and one["content"] == _CLEARED for one in now)
    assert (head is not None) == (covers_results and is_cleared and at not in covered)
    assert head is None or is_active(state, now, head, pivot)
