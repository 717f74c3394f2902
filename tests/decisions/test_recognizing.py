"""Whatever was read before, a body gives the conversation that it gives when it is read alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.branches import Branches
from gateway.conversations.reading import Received
from gateway.core.errors import Unreadable
from gateway.state.memory import Memory
from gateway.store.keys import make_tag
from gateway.wire.format import Format
from gateway.wire.registry import CHAT, MESSAGES, RESPONSES
from tests.builders import messages as messages_conversations
from tests.builders import responses
from tests.builders.chat import read
from tests.decisions.builders import JSON, bodies, conversations, frames, render, render_message, texts
from tests.examples import examples


class Reader:
    """Reads each body beside those before it."""

    def __init__(self, bodies_bytes: int = 1 << 22) -> None:
        self._branches = Branches(Memory(), bodies_bytes, 1_000)

    def read(self, tenant: str, wire_format: Format, body: bytes) -> Received:
        received = self._branches.read(tenant, wire_format, body)
        conversation = received.conversation
        self._branches.keep(received, conversation.chain[conversation.opening_end].hex(), 0)
        return received


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
    reader = Reader()
    for _ in range(6):
        body = render(messages, frame)
        assert_same(reader.read("t", CHAT, body), body)
        messages = changed(data, messages)
        frame = data.draw(st.one_of(st.just(frame), frames()))


@given(st.data(), st.lists(conversations(max_turns=3), min_size=2, max_size=3))
def test_conversations_that_take_turns_do_not_mix(data: st.DataObject, talks: list[list[JSON]]) -> None:
    reader = Reader(bodies_bytes=data.draw(st.sampled_from([0, 3_000, 1 << 20])))
    for _ in range(6):
        at = data.draw(st.integers(0, len(talks) - 1))
        tenant = data.draw(st.sampled_from(["t", "u"]))
        body = render(talks[at])
        assert_same(reader.read(tenant, CHAT, body), body, tenant)
        talks[at] = changed(data, talks[at])


@given(bodies(), bodies(), st.data())
def test_any_splice_of_two_bodies_is_read_as_it_is_read_alone(
    first: bytes, second: bytes, data: st.DataObject
) -> None:
    reader = Reader()
    reader.read("t", CHAT, first)
    at = data.draw(st.integers(0, len(first)))
    spliced = first[:at] + second[data.draw(st.integers(0, len(second))) :]
    try:
        read(spliced)
    except Unreadable:
        with pytest.raises(Unreadable):
            reader.read("t", CHAT, spliced)
    else:
        assert_same(reader.read("t", CHAT, spliced), spliced)


_LONG = {"role": "user", "content": "x" * 200}
_REPLY = {"role": "assistant", "content": "y" * 200}


@pytest.mark.parametrize("at", range(4))
def test_an_edit_that_leaves_every_length_as_it_was_is_an_edit(at: int) -> None:
    reader, talk = (
        Reader(),
        [{"role": role, "content": "x" * 90} for role in ("user", "assistant")] * 2,
    )
    for content in ("x" * 90, "x" * 89 + "y"):
        body = render([*talk[:at], {**talk[at], "content": content}, *talk[at + 1 :]])
        assert_same(reader.read("t", CHAT, body), body)


@given(conversations())
def test_two_tenants_or_two_formats_never_share_a_chain_or_a_key(messages: list[JSON]) -> None:
    reader = Reader()
    mine = reader.read("t", CHAT, render(messages)).conversation
    plain = render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    others = [reader.read("u", CHAT, render(messages)).conversation]
    assert set(mine.chain).isdisjoint(others[0].chain)
    others += [reader.read("t", each, plain).conversation for each in (CHAT, MESSAGES)]
    assert set(others[1].chain).isdisjoint(others[2].chain)
    for one, other in ((mine, others[0]), (others[1], others[2])):
        keys = {message.key for message in (*one.leading, *one.messages)}
        assert keys.isdisjoint(message.key for message in (*other.leading, *other.messages))


def test_the_leading_block_may_change_and_the_chain_does_not() -> None:
    talks = [[{"role": "system", "content": date}, _LONG, _REPLY, _LONG] for date in ("Monday", "Tuesday")]
    reader = Reader()
    first, second = (reader.read("t", CHAT, render(talk)).conversation for talk in talks)
    assert first.chain == second.chain
    assert first.leading != second.leading


def test_neither_a_side_call_nor_a_deletion_makes_the_next_request_be_read_again() -> None:
    """A body that is not split as a whole takes over the envelope of the one before."""
    memory = Memory()
    branches = Branches(memory, 1 << 22, 1_000)
    main = branches.read("t", CHAT, render([_LONG, _REPLY], 1))
    side = branches.read("t", CHAT, render([_LONG, _REPLY], 1).replace(b'"look"', b'"see"'))
    assert side.body.envelope != main.body.envelope
    for received, name in ((main, "main"), (side, "side")):
        branches.keep(received, name, memory.purges)
    body = render([_LONG, _REPLY, _LONG], 1)
    assert branches.read("t", CHAT, body).body.envelope is main.body.envelope
    memory.forget(make_tag("t"), "side")
    memory.forget(make_tag("u"))
    assert branches.read("t", CHAT, body).body.envelope is main.body.envelope
    memory.forget(make_tag("t"))
    assert branches.read("t", CHAT, body).body.envelope is not main.body.envelope


def test_a_body_that_begins_differently_each_time_is_read_beside_the_one_before() -> None:
    reader = Reader()
    date, later = ({"role": "system", "content": f"{hour} o'clock. " * 40} for hour in ("Nine", "Ten"))
    before = reader.read("t", CHAT, render([date, _LONG, _REPLY])).conversation
    body = render([later, _LONG, _REPLY, _LONG])
    found = reader.read("t", CHAT, body)
    assert_same(found, body)
    assert all(one is other for one, other in zip(before.messages, found.conversation.messages, strict=False))


@given(messages_conversations.conversations(min_turns=2), frames())
def test_a_mark_that_moves_to_the_newest_message_makes_no_branch(messages: list[JSON], frame: int) -> None:
    reader = Reader()
    for length in range(1, len(messages) + 1, 2):
        marked = messages_conversations.with_mark_on_newest(messages[:length])
        body = messages_conversations.render(marked, frame)
        found = reader.read("t", MESSAGES, body)
        assert found.conversation.chain == messages_conversations.read(body).conversation.chain


@given(st.data())
@examples(20, exhaustive=60)
def test_a_longer_responses_input_is_read_like_the_shorter_one_and_what_was_added(
    data: st.DataObject,
) -> None:
    """However little the second body brings, and wherever in a reply the first one ended."""
    items = data.draw(responses.conversations(min_turns=2))
    raws = [render_message(item) for item in items]
    frame = data.draw(responses.frames())
    reader = Reader()
    for end in sorted(data.draw(st.sets(st.integers(1, len(raws)), min_size=1, max_size=4))):
        body = responses.render_body(raws[:end], frame)
        assert reader.read("t", RESPONSES, body).conversation == responses.read(body).conversation
        assert reader.read("t", RESPONSES, body).body.places == responses.read(body).body.places


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
