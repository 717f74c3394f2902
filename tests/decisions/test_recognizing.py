"""Whatever was read before, a body gives the conversation that it gives when it is read alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversations.recognizer import Received, Recognizer
from gateway.core.errors import Unreadable
from gateway.wire.registry import CHAT, MESSAGES, RESPONSES
from tests.builders import messages as messages_conversations
from tests.builders import responses
from tests.builders.chat import read
from tests.decisions.builders import JSON, bodies, conversations, frames, render, render_message, texts
from tests.examples import examples


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


@pytest.mark.parametrize("at", range(4))
def test_an_edit_that_leaves_every_length_as_it_was_is_an_edit(at: int) -> None:
    recognizer, talk = (
        make_recognizer(),
        [{"role": role, "content": "x" * 90} for role in ("user", "assistant")] * 2,
    )
    for content in ("x" * 90, "x" * 89 + "y"):
        body = render([*talk[:at], {**talk[at], "content": content}, *talk[at + 1 :]])
        assert_same(recognizer.recognize("t", CHAT, body), body)


@given(conversations())
def test_two_tenants_or_two_formats_never_share_a_chain_or_a_key(messages: list[JSON]) -> None:
    recognizer = make_recognizer()
    mine = recognizer.recognize("t", CHAT, render(messages)).conversation
    plain = render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    others = [recognizer.recognize("u", CHAT, render(messages)).conversation]
    assert set(mine.chain).isdisjoint(others[0].chain)
    others += [recognizer.recognize("t", each, plain).conversation for each in (CHAT, MESSAGES)]
    assert set(others[1].chain).isdisjoint(others[2].chain)
    for one, other in ((mine, others[0]), (others[1], others[2])):
        keys = {message.key for message in (*one.leading, *one.messages)}
        assert keys.isdisjoint(message.key for message in (*other.leading, *other.messages))


def test_the_leading_block_may_change_and_the_chain_does_not() -> None:
    talks = [[{"role": "system", "content": date}, _LONG, _REPLY, _LONG] for date in ("Monday", "Tuesday")]
    recognizer = make_recognizer()
    first, second = (recognizer.recognize("t", CHAT, render(talk)).conversation for talk in talks)
    assert first.chain == second.chain
    assert first.leading != second.leading


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
