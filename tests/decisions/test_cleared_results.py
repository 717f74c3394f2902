"""Histories whose old results a client has cleared, and what a request is for."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations import trimmed_histories
from gateway.conversations.reading import Received
from gateway.core.history.conversation import Conversation, begin_conversation, with_messages
from gateway.core.history.ends import (
    PLACEHOLDERS,
    HistoryEnd,
    HistorySource,
    continue_history,
    find_end_key,
    find_ends,
    find_placeholders,
    make_history_end,
)
from gateway.core.history.purpose import find_label, is_agent
from gateway.state import State
from tests.builders.chat import make_turn, read
from tests.builders.state import make_state, make_store
from tests.decisions.builders import JSON, conversations, converse, make_head, render, say

_OWN = "(gone, ünlike others)"
_PLACEHOLDERS = find_placeholders(_OWN)
_CLEARED = PLACEHOLDERS[0]
_SOURCE = HistorySource(b"source", is_named=False)
_SHARED = _SOURCE._replace(is_proof=False)


def record(conversation: Conversation) -> HistoryEnd:
    key = find_end_key(_SOURCE, conversation)
    assert key is not None
    return make_history_end("t", key, conversation)


def recognize(
    known: HistoryEnd, messages: Sequence[JSON], tenant: str = "t", source: HistorySource = _SOURCE
) -> Conversation | None:
    received = read(render(messages), tenant).conversation
    for end, key in find_ends(received.chain[0], source, received.messages):
        if key == known.key:
            return continue_history(known, received, end, source, _PLACEHOLDERS)
    return None


def clear(messages: Sequence[JSON], *positions: int, text: str = _CLEARED) -> list[JSON]:
    return [
        {**message, "content": text} if at in positions and message["role"] == "tool" else message
        for at, message in enumerate(messages)
    ]


_BEFORE, _WHOLE = say(5), say(6)
_RESULTS = [at for at, message in enumerate(_WHOLE) if message["role"] == "tool"]
_MORE: list[JSON] = [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "And now?"}]


@given(conversations(min_turns=4), st.data())
def test_a_history_goes_on_whichever_results_are_cleared(messages: list[JSON], data: st.DataObject) -> None:
    whole = converse(messages)
    if find_end_key(_SOURCE, whole) is None:
        return
    gone = data.draw(st.sets(st.integers(0, len(messages) - 1)))
    text = data.draw(st.sampled_from([*PLACEHOLDERS, _OWN]))
    found = recognize(record(whole), [*clear(messages, *gone, text=text), *_MORE])
    assert found is not None and found.trim is not None
    assert found.find_link(len(whole.messages)) == whole.key.hex()
    assert found.chain[found.trim.known_from :] == converse([*messages, *_MORE]).chain[whole.opening_end :]
    # What is sent is what was received.
    cleared = converse([*clear(messages, *gone, text=text), *_MORE]).messages
    assert list(found.received) == list(found.messages)
    assert [one.fingerprint for one in found.messages] == [one.fingerprint for one in cleared]


@given(conversations(min_turns=4), st.data())
def test_a_history_with_a_message_that_changed_is_another_one(
    messages: list[JSON], data: st.DataObject
) -> None:
    whole = converse(messages)
    if find_end_key(_SOURCE, whole) is None:
        return
    at = data.draw(st.integers(len(whole.leading), len(messages) - 1))
    now = clear(messages, *data.draw(st.sets(st.integers(0, len(messages) - 1))))
    now[at] = {**now[at], "x-changed": 1}
    assert recognize(record(whole), [*now, *_MORE]) is None


def test_what_is_cleared_later_is_found_as_well_and_what_was_cleared_stays_so() -> None:
    first = recognize(record(converse(_BEFORE)), clear(_WHOLE, _RESULTS[0]))
    assert first is not None
    for gone in (_RESULTS[:1], _RESULTS[:3]):
        found = recognize(record(first), [*clear(_WHOLE, *gone), *_MORE])
        assert found is not None and found.key == converse([*_WHOLE, *_MORE]).key
        assert found.find_changed() == gone
    assert recognize(record(first), [*clear(_WHOLE, _RESULTS[0], text="other"), *_MORE]) is None


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        ("call_kV3mR8xQ2pLw9ZtY", True),
        ("toolu_01A09q90qw90lq917835lq9", True),
        ("D681PevKs", True),
        ("1_0", False),
        ("functions.read_file:12", False),
        ("call_000000000012", False),
    ],
)
def test_beside_other_processes_only_calls_with_ids_that_no_other_has_are_a_proof(
    name: str, is_found: bool
) -> None:
    """Two histories that differ in one result are equal once it is cleared. One may be known elsewhere."""
    whole: list[JSON] = json.loads(json.dumps(_WHOLE).replace("t:", f"{name}:"))
    known = record(converse(whole[: len(_BEFORE)]))
    found = recognize(known, clear(whole, _RESULTS[0]), source=_SHARED)
    assert (found is not None) == is_found


@pytest.mark.parametrize("text", ["other", f"{_CLEARED}.", "", "t:1 word"])
@pytest.mark.parametrize("source", [_SOURCE, HistorySource(b"source", is_named=True)], ids=["", "named"])
def test_a_result_with_another_text_is_an_edit(text: str, source: HistorySource) -> None:
    edited = clear(clear(_WHOLE, _RESULTS[0]), _RESULTS[1], text=text)
    assert recognize(record(converse(_BEFORE)), edited, source=source) is None


@pytest.mark.parametrize("note", ["{}[cut]", "[Trimmed: look output — 612 chars → 200 char preview]\n{}..."])
def test_a_result_that_was_cut_where_nothing_is_gone_is_a_shorter_form_of_it(note: str) -> None:
    known, named = record(converse(_BEFORE)), HistorySource(b"source", is_named=True)
    cut = clear(_WHOLE, _RESULTS[1], text=note.format(str(_WHOLE[_RESULTS[1]]["content"])[:200]))
    assert recognize(known, cut, source=named) is not None
    assert recognize(known, cut) is None
    other = clear(_WHOLE, _RESULTS[1], text=note.format("Another text. " * 10))
    assert recognize(known, other, source=named) is None


@pytest.mark.parametrize(
    "changed",
    [
        [{"role": "user", "content": _CLEARED}, *clear(_WHOLE, _RESULTS[0])[1:]],
        clear(_WHOLE, _RESULTS[0])[1:],
        [*_WHOLE[:2], {**_WHOLE[2], "tool_call_id": "t:9", "content": _CLEARED}, *_WHOLE[3:]],
        [*_WHOLE[:2], {**_WHOLE[2], "content": _CLEARED, "x-unknown": 1}, *_WHOLE[3:]],
        [*_WHOLE[:3], _WHOLE[3], *_WHOLE[3:]],
        [*clear(_WHOLE[:3], 2), *_WHOLE[4:]],
    ],
    ids=["user", "no task", "id", "field", "one more", "one less"],
)
def test_nothing_but_results_may_have_changed(changed: list[JSON]) -> None:
    known = record(converse(_BEFORE))
    assert recognize(known, clear(_WHOLE, _RESULTS[0])) is not None
    assert recognize(known, changed) is None


def test_a_result_that_cannot_be_told_from_its_message_is_compared_with_it() -> None:
    def without_split(messages: Sequence[JSON]) -> Conversation:
        found = [message._replace(split=b"") for message in converse(messages).messages]
        return with_messages(begin_conversation("t", "chat"), 0, found)

    known = record(without_split(_BEFORE))
    for messages, is_found in ((_WHOLE, True), (clear(_WHOLE, _RESULTS[0]), False)):
        received = without_split(messages)
        found = continue_history(known, received, len(_BEFORE), _SOURCE, _PLACEHOLDERS)
        assert (found is not None) == is_found


def test_another_tenants_history_is_never_found() -> None:
    known = record(converse(_BEFORE))
    assert recognize(known, clear(_WHOLE, _RESULTS[0])) is not None
    assert recognize(known, clear(_WHOLE, _RESULTS[0]), "other") is None


async def resume(state: State, sent: Received, source: HistorySource) -> Received | None:
    """From the store."""
    trip = state.begin_trip(sent.owner)
    keys = [key for _, key in trimmed_histories.list_ends(state, sent, source)]
    ends: list[HistoryEnd] = []
    state.histories.ask(trip, keys, ends.append)
    await trip.run()
    return trimmed_histories.find(state, sent, source, "", ends[0]) if ends else None


@pytest.mark.parametrize("sent", [say(9)[-20:], clear(say(9), 2)], ids=["trimmed", "cleared"])
async def test_what_was_recorded_before_a_restart_is_loaded(sent: list[JSON]) -> None:
    store = await make_store()
    turn = make_turn(read(render(say(8))))
    received = read(render(sent))
    source = turn.source
    before = make_state(store)
    head = make_head(turn.received.conversation)
    key = trimmed_histories.record(before, turn, head)
    assert key is not None
    assert await resume(make_state(store), received, source) is None
    await before.histories.save(key, head)
    later = make_state(store)
    assert trimmed_histories.find(later, received, source, "") is None
    found = await resume(later, received, source)
    assert found is not None
    assert found.conversation.key == read(render(say(9))).conversation.key
    assert await resume(later, read(render(sent), "other"), source) is None
    assert await resume(later, received, HistorySource(b"another", is_named=True)) is None


async def test_no_history_is_taken_if_the_cleared_result_may_be_of_either_of_two() -> None:
    state = make_state(await make_store())
    first, other = say(8), [*say(8)]
    other[2] = {**other[2], "content": "Something else."}
    turns = [make_turn(read(render(messages))) for messages in (first, other)]
    trimmed_histories.record(state, turns[0], make_head(turns[0].received.conversation))
    sent = read(render(clear(say(9), 2)))
    assert trimmed_histories.find(state, sent, turns[0].source, "") is not None
    trimmed_histories.record(state, turns[1], make_head(turns[1].received.conversation))
    assert trimmed_histories.find(state, sent, turns[0].source, "") is None


@pytest.mark.parametrize(
    "name", ["x-parent-session-id", "X-Claude-Code-Agent-Id", "x-openai-subagent", "x-codex-parent-thread-id"]
)
def test_a_sub_agent_is_recognized_by_its_header(name: str) -> None:
    assert is_agent(["content-type", name])
    assert not is_agent(["content-type", "x-session-id", "session-id"])


def test_a_session_has_the_name_that_its_client_gives_it() -> None:
    assert find_label([("X-Session-Id", "ses_1"), ("x-gateway-session", "mine")]) == "mine"
    # Sub-agents of Codex send the session of their parent.
    assert find_label([("session-id", "parent"), ("thread-id", "child")]) == "child"
    assert find_label([("user-agent", "x")]) is None
