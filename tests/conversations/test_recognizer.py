"""Whatever was read before, a body gives the conversation that it gives when it is read alone."""

import asyncio
import json
import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bounds.lanes import Lanes
from gateway.conversations.recognizer import Received, Recognizer
from gateway.core.errors import BeyondBounds, Unreadable
from gateway.core.history.message import Message
from gateway.wire.formats.chat import CHAT
from gateway.wire.formats.messages import MESSAGES
from gateway.wire.formats.responses import RESPONSES
from gateway.wire.structure import UNBOUNDED
from tests.builders import messages as messages_conversations
from tests.builders import responses
from tests.builders.chat import (
    JSON,
    bodies,
    conversations,
    frames,
    read,
    render,
    render_message,
    texts,
)
from tests.examples import examples
from tests.shared_data import SHARED, requires_shared


def make_recognizer(bodies_bytes: int = 1 << 22, facts_bytes: int = 1 << 22) -> Recognizer:
    return Recognizer(bodies_bytes, facts_bytes, 1_000)


def assert_same(found: Received, body: bytes, tenant: str = "t") -> None:
    expected = read(body, tenant)
    assert found.conversation.leading == expected.conversation.leading
    assert found.conversation.messages == expected.conversation.messages
    assert found.conversation.chain == expected.conversation.chain
    assert found.conversation.opening_end == expected.conversation.opening_end
    assert found.body == expected.body
    assert found.owner == tenant


def changed(data: st.DataObject, messages: list[JSON]) -> list[JSON]:
    """One way in which a client goes on: grow, rewind, fork, edit, drop, insert, or the same again."""
    at = data.draw(st.integers(0, len(messages)))
    more = data.draw(st.lists(st.builds(lambda text: {"role": "user", "content": text}, texts()), max_size=2))
    match data.draw(st.sampled_from(["grow", "rewind", "fork", "edit", "drop", "again"])):
        case "grow":
            return [*messages, *more]
        case "rewind":
            return messages[: at + 1]
        case "fork":
            return [*messages[:at], *more]
        case "edit" if messages:
            at = min(at, len(messages) - 1)
            return [*messages[:at], {**messages[at], "content": data.draw(texts())}, *messages[at + 1 :]]
        case "drop":
            return [*messages[:at], *messages[at + 1 :]]
        case _:
            return messages


@given(st.data(), conversations(), frames())
def test_growing_forking_rewinding_and_editing_give_what_reading_it_whole_gives(
    data: st.DataObject, messages: list[JSON], frame: int
) -> None:
    recognizer = make_recognizer()
    for _ in range(6):
        body = render(messages, frame)
        assert_same(recognizer.recognize("t", CHAT, body), body)
        messages = changed(data, messages)
        frame = data.draw(st.one_of(st.just(frame), frames()))


@given(st.data(), st.lists(conversations(max_turns=3), min_size=2, max_size=3))
def test_conversations_that_take_turns_do_not_mix(data: st.DataObject, talks: list[list[JSON]]) -> None:
    recognizer = make_recognizer(bodies_bytes=data.draw(st.sampled_from([0, 3_000, 1 << 20])))
    for _ in range(6):
        at = data.draw(st.integers(0, len(talks) - 1))
        tenant = data.draw(st.sampled_from(["t", "u"]))
        body = render(talks[at])
        assert_same(recognizer.recognize(tenant, CHAT, body), body, tenant)
        talks[at] = changed(data, talks[at])


@given(bodies(), bodies(), st.data())
def test_any_splice_of_two_bodies_is_read_as_it_is_read_alone(
    first: bytes, second: bytes, data: st.DataObject
) -> None:
    recognizer = make_recognizer()
    recognizer.recognize("t", CHAT, first)
    at = data.draw(st.integers(0, len(first)))
    spliced = first[:at] + second[data.draw(st.integers(0, len(second))) :]
    try:
        read(spliced)
    except Unreadable:
        with pytest.raises(Unreadable):
            recognizer.recognize("t", CHAT, spliced)
    else:
        assert_same(recognizer.recognize("t", CHAT, spliced), spliced)


_LONG = {"role": "user", "content": "x" * 200}
_REPLY = {"role": "assistant", "content": "y" * 200}


@pytest.mark.parametrize(
    "added",
    [
        b",",
        b" , ",
        b",,",
        b" ",
        b"],[",
        b'],"messages":[',
        b'],"x":[',
        b'],"x":{"y":[1]},"z":[{}',
        b",1",
        b",{}",
        b',{"role":"user"}',
        b',{"role":"user","content":"\xff"}',
        b',{"role":"user","content":"\\ud800"}',
        b',{"role":"user","content":NaN}',
        b'{"role":"user","content":"y"}',
        b',{"role":"user","content":"y"},',
    ],
)
def test_a_continuation_is_checked_as_strictly_as_a_whole_body(added: bytes) -> None:
    recognizer = make_recognizer()
    body = render([_LONG, _REPLY, _LONG], 1)
    recognizer.recognize("t", CHAT, body)
    at = recognizer.recognize("t", CHAT, body).body.places[-1].end
    spliced = body[:at] + added + body[at:]
    try:
        read(spliced)
    except Unreadable:
        with pytest.raises(Unreadable):
            recognizer.recognize("t", CHAT, spliced)
    else:
        assert_same(recognizer.recognize("t", CHAT, spliced), spliced)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"messages":null}',
        b'{"messages":{}}',
        b'{"messages":[1]}',
        b'{"messages":[{}]}',
        b'{"messages":[{"role":1}]}',
        b'{"messages":[{"role":"user","content":NaN}]}',
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":1e400}]}',
        b'{"messages":[],"messages":[]}',
        b'{"messages":[],"model":"a","model":"b"}',
        b'{"messages":[],"x":NaN}',
        b'{"messages":[]} {}',
        b'{"messages":[{"role":"user","content":' + b"[" * 5_000 + b"]" * 5_000 + b"}]}",
        b'\xef\xbb\xbf{"messages":[]}',
    ],
)
def test_a_body_that_is_not_of_the_format_is_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        make_recognizer().recognize("t", CHAT, body)


def test_an_unreadable_body_forgets_nothing() -> None:
    recognizer = make_recognizer()
    body = render([_LONG, _REPLY, _LONG])
    before = recognizer.recognize("t", CHAT, body)
    with pytest.raises(Unreadable):
        recognizer.recognize("t", CHAT, body[:-2] + b",1]}")
    after = recognizer.recognize("t", CHAT, body)
    pairs = zip(after.conversation.messages, before.conversation.messages, strict=True)
    assert all(new is old for new, old in pairs)


@given(conversations())
def test_two_tenants_never_share_a_chain_or_a_key(messages: list[JSON]) -> None:
    recognizer = make_recognizer()
    mine = recognizer.recognize("t", CHAT, render(messages)).conversation
    theirs = recognizer.recognize("u", CHAT, render(messages)).conversation
    assert set(mine.chain).isdisjoint(theirs.chain)
    keys = {message.key for message in (*mine.leading, *mine.messages)}
    assert keys.isdisjoint(message.key for message in (*theirs.leading, *theirs.messages))


def test_a_message_that_was_seen_is_not_read_again() -> None:
    recognizer = make_recognizer()
    first = recognizer.recognize("t", CHAT, render([_LONG, _REPLY, _LONG])).conversation
    grown = recognizer.recognize("t", CHAT, render([_LONG, _REPLY, _LONG, _REPLY])).conversation
    moved = recognizer.recognize("t", CHAT, render([_LONG, _REPLY], 2)).conversation
    assert [a is b for a, b in zip(first.messages, grown.messages, strict=False)] == [True, True, True]
    assert [a is b for a, b in zip(first.messages, moved.messages, strict=False)] == [False, True]
    clocks = [{"role": "system", "content": f"It is {minute}."} for minute in range(2)]
    early, late = (recognizer.recognize("t", CHAT, render([clock, _LONG, _REPLY])) for clock in clocks)
    pairs = zip(early.conversation.messages, late.conversation.messages, strict=True)
    assert [a is b for a, b in pairs] == [True, True]


def test_the_leading_block_may_change_and_the_chain_does_not() -> None:
    talks = [[{"role": "system", "content": date}, _LONG, _REPLY, _LONG] for date in ("Monday", "Tuesday")]
    recognizer = make_recognizer()
    first, second = (recognizer.recognize("t", CHAT, render(talk)).conversation for talk in talks)
    assert first.chain == second.chain
    assert first.leading != second.leading


@given(st.data())
@examples(20, exhaustive=20)
def test_the_memory_stays_within_its_bounds_under_any_load(data: st.DataObject) -> None:
    bounds = data.draw(st.sampled_from([0, 2_000, 20_000])), data.draw(st.sampled_from([0, 2_000, 20_000]))
    recognizer = make_recognizer(*bounds)
    for number in range(data.draw(st.integers(1, 60))):
        talk = [{"role": "user", "content": f"{number % 7} " * 40}] * data.draw(st.integers(1, 9))
        body = render([*talk, {"role": "user", "content": str(number)}])
        assert_same(recognizer.recognize("t", CHAT, body), body)
        assert recognizer.bodies_bytes <= bounds[0]
        assert recognizer.facts_bytes <= bounds[1]


def test_many_different_conversations_leave_no_more_behind_than_their_bound() -> None:
    recognizer = make_recognizer(200_000, 200_000)

    def load(start: int) -> None:
        for number in range(start, start + 400):
            recognizer.recognize("t", CHAT, render([{"role": "user", "content": f"{number} " * 300}, _REPLY]))

    load(0)
    tracemalloc.start()
    load(400)
    load(800)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 600_000


def test_a_message_with_very_many_calls_weighs_what_it_holds() -> None:
    recognizer = make_recognizer(100_000, 100_000)
    tracemalloc.start()
    for number in range(20):
        calls = [{"id": f"{number}-{at}", "function": {"name": "look"}} for at in range(2_000)]
        recognizer.recognize("t", CHAT, render([{"role": "assistant", "tool_calls": calls}]))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 2_000_000


@given(messages_conversations.conversations(min_turns=2), frames())
def test_a_mark_that_moves_to_the_newest_message_makes_no_branch(messages: list[JSON], frame: int) -> None:
    recognizer = make_recognizer()
    kept = []
    for length in range(1, len(messages) + 1, 2):
        marked = messages_conversations.with_mark_on_newest(messages[:length])
        body = messages_conversations.render(marked, frame)
        found = recognizer.recognize("t", MESSAGES, body)
        assert found.conversation.chain == messages_conversations.read(body).conversation.chain
        kept.append(recognizer.kept_bodies)
    # The first message is the last one, too: nothing is shared with it. Where its power of two crosses into
    # the message that changes, a body is read whole, and kept beside the one before.
    crossings = len(body).bit_length() - 6
    assert kept[-1] <= 2 + crossings


@requires_shared
def test_one_recorded_conversation_that_forks_is_two_branches_with_one_beginning() -> None:
    transcripts = SHARED / "data" / "transcripts"
    manifest = json.loads((transcripts / "MANIFEST.json").read_text("utf-8"))
    for fork in manifest["fork_sets"]:
        names = fork["files"] if isinstance(fork, dict) else fork
        talks: list[Any] = [json.loads((transcripts / name).read_text("utf-8"))["messages"] for name in names]
        recognizer = make_recognizer()
        chains = []
        for talk in talks:
            body = render(talk)
            found = recognizer.recognize("t", CHAT, body)
            assert_same(found, body)
            chains.append(found.conversation.chain)
        shared = sum(a == b for a, b in zip(*chains, strict=False))
        assert 1 < shared < min(len(chain) for chain in chains)
        assert chains[0][:shared] == chains[1][:shared]
        assert set(chains[0][shared:]).isdisjoint(chains[1][shared:])


def test_the_slice_of_a_position_is_the_message_behind_the_leading_block() -> None:
    talk = [{"role": "system", "content": "s"}, _LONG, _REPLY]
    received = read(render(talk))
    assert [received.raw(0), received.raw(1)] == [render_message(_LONG), render_message(_REPLY)]


@given(st.data())
@examples(20, exhaustive=60)
def test_a_longer_responses_input_is_read_like_the_shorter_one_and_what_was_added(
    data: st.DataObject,
) -> None:
    """However little the second body brings, and wherever in a reply the first one ended."""
    items = data.draw(responses.conversations(min_turns=2))
    raws = [render_message(item) for item in items]
    frame = data.draw(responses.frames())
    recognizer = make_recognizer()
    for end in sorted(data.draw(st.sets(st.integers(1, len(raws)), min_size=1, max_size=4))):
        body = responses.render_body(raws[:end], frame)
        assert recognizer.recognize("t", RESPONSES, body).conversation == responses.read(body).conversation
        assert recognizer.recognize("t", RESPONSES, body).body.places == responses.read(body).body.places


@given(responses.conversations(min_turns=1))
@examples(20, exhaustive=60)
def test_a_client_that_drops_reasoning_stays_in_its_conversation(items: list[dict[str, object]]) -> None:
    """It may also drop ids, and a type that messages need not have."""
    plain = [
        {
            key: value
            for key, value in item.items()
            if key not in ("id", "status") or "mcp" in str(item["type"])
        }
        for item in ({"type": "message", **item} for item in items)
        if item["type"] != "reasoning"
    ]
    sent = [render_message(item) for item in items]
    bare = [render_message(item) for item in plain]
    whole = responses.read(responses.render_body(sent)).conversation
    assert responses.read(responses.render_body(bare)).conversation.chain == whole.chain


# So much is read in a thread.
_MUCH: JSON = {"role": "user", "content": "long " * 15_000}


@examples(20, exhaustive=200)
@given(conversations(max_turns=3), st.data())
def test_what_is_read_in_a_thread_is_what_is_read_at_once(messages: list[JSON], data: st.DataObject) -> None:
    async def read_all() -> None:
        recognizer, lanes = make_recognizer(), Lanes()
        talk = [_MUCH, *messages]
        for number in range(4):
            body = render(talk)
            assert_same(await recognizer.recognize_in(lanes, "t", CHAT, body), body)
            more = {**_MUCH, "content": f"{number} {_MUCH['content']}"} if number % 2 else _REPLY
            talk = [*changed(data, talk), more]
        lanes.close()

    asyncio.run(read_all())


async def test_requests_that_are_read_at_the_same_time_do_not_mix() -> None:
    recognizer, lanes = make_recognizer(), Lanes()
    start = [_LONG, _REPLY]
    first = recognizer.recognize("t", CHAT, render(start))
    bodies = [render([*start, {**_MUCH, "content": f"{number} {_MUCH['content']}"}]) for number in range(6)]
    read_at_once = [recognizer.recognize_in(lanes, "t", CHAT, body) for body in (*bodies, bodies[0])]
    for found, body in zip(await asyncio.gather(*read_at_once), (*bodies, bodies[0]), strict=True):
        assert_same(found, body)
    assert_same(first, render(start))
    for body in bodies:
        assert_same(await recognizer.recognize_in(lanes, "t", CHAT, body), body)
    lanes.close()


async def test_only_much_new_material_is_read_in_a_thread() -> None:
    names: list[str] = []

    def parse(raw: bytes, key: bytes) -> Message:
        names.append(threading.current_thread().name)
        return CHAT.parse_message(raw, key)

    wire_format = replace(CHAT, parse_message=parse)
    recognizer, lanes = make_recognizer(), Lanes()
    main = threading.current_thread().name
    for talk, is_apart in (
        ([_LONG], False),
        ([_LONG, _MUCH], True),
        ([_LONG, _MUCH, _REPLY], False),
        # Little, but of many values.
        ([_LONG, _MUCH, _REPLY, *[{"role": "user"}] * 2_001], True),
    ):
        names.clear()
        await recognizer.recognize_in(lanes, "t", wire_format, render(talk))
        assert {name != main for name in names} == {is_apart}
    lanes.close()


async def test_a_body_beyond_its_bounds_is_not_read_and_not_kept() -> None:
    bounds = replace(UNBOUNDED, messages=3)
    recognizer, lanes = Recognizer(1 << 20, 1 << 20, 8, bounds), Lanes()
    recognizer.recognize("t", CHAT, render([_LONG, _REPLY, _LONG]))
    for body in (render([_LONG, _REPLY, _LONG, _REPLY]), render([_REPLY, _LONG] * 2)):
        with pytest.raises(BeyondBounds, match="more than 3 messages"):
            recognizer.recognize("t", CHAT, body)
        with pytest.raises(BeyondBounds):
            await recognizer.recognize_in(lanes, "t", CHAT, body)
    assert recognizer.kept_bodies == 1
    deep = Recognizer(1 << 20, 1 << 20, 8, replace(UNBOUNDED, depth=9))
    nested = b'{"messages":[{"role":"user","content":' + b"[" * 10 + b"]" * 10 + b"}]}"
    with pytest.raises(BeyondBounds, match="nested"):
        deep.recognize("t", CHAT, nested)
    lanes.close()
