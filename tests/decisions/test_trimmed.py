"""A history is recognized by its end, however much of its beginning a client has dropped or shortened."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.core.history.conversation import Conversation, begin_conversation, with_messages
from gateway.core.history.ends import (
    STORED_LINKS,
    HistoryEnd,
    HistorySource,
    continue_history,
    find_end_key,
    find_ends,
    make_history_end,
)
from gateway.core.history.message import Call, Message, hash_beginning

_SCOPE = HistorySource(b"upstream, model, tools", is_named=True)
_OPENING = 2


def message(role: str, text: str, size: int = 400, call: str = "", result: str = "") -> Message:
    content = f"{role}|{text}|{size}|{call}|{result}".encode()
    return Message(
        role=role,  # type: ignore[arg-type]
        key=hashlib.sha256(b"key" + content).digest(),
        fingerprint=hashlib.sha256(content).digest(),
        size_bytes=size,
        calls=(Call(call, "look"),) if call else (),
        results=(result,) if result else (),
        beginning=hash_beginning(text),
    )


def turn(number: int, name: str = "a") -> list[Message]:
    """A call, its result, and every third time a word of the user."""
    identity = f"{name}{number}"
    said = [message("assistant", identity, call=identity), message("tool", identity, result=identity)]
    return (
        said if number % 3 else [*said, message("assistant", f"done {identity}"), message("user", identity)]
    )


def talk(turns: int, name: str = "a") -> list[Message]:
    """The opening, and so many turns."""
    opening = [message("user", "rules"), message("user", f"task {name}")]
    return [*opening, *(each for number in range(turns) for each in turn(number, name))]


def receive(messages: Sequence[Message], owner: str = "t") -> Conversation:
    return with_messages(begin_conversation(owner, "chat"), 0, messages)


def record(
    conversation: Conversation,
    scope: HistorySource = _SCOPE,
    most_links: int = 2_000,
    *,
    is_crowded: bool = False,
) -> HistoryEnd:
    key = find_end_key(scope, conversation)
    assert key is not None
    return replace(make_history_end("t", key, conversation, most_links), is_crowded=is_crowded)


def recognize(
    known: HistoryEnd, messages: Sequence[Message], owner: str = "t", *, is_named: bool = True
) -> Conversation | None:
    """As a request with these messages is recognized if only this history is known."""
    received = receive(messages, owner)
    for end, key in find_ends(received.chain[0], _SCOPE, received.messages):
        if key == known.key:
            return continue_history(known, received, end, _SCOPE._replace(is_named=is_named))
    return None


def assert_continues(found: Conversation | None, whole: Conversation, received: Sequence[Message]) -> None:
    """Everything that records are found by is that of the whole history."""
    assert found is not None and found.trim is not None
    known_from = found.trim.known_from
    assert list(found.chain[known_from:]) == list(whole.chain[known_from:])
    assert [found.messages[at] for at in found.trim.positions] == list(received)
    assert all(found.messages[at] == whole.messages[at] for at in found.trim.positions if at >= known_from)
    assert list(found.received) == list(received)
    assert len(found.chain) == len(found.messages) + 1 == len(whole.chain)
    assert set(found.chain[1:known_from]).isdisjoint(whole.chain)
    links = [found.find_link(length) for length in range(len(found.chain) + 1)]
    assert links[known_from:-1] == [link.hex() for link in whole.chain[known_from:]]
    assert not any([*links[:known_from], links[-1]])
    for position, each in enumerate(found.messages):
        assert found.is_gone(position) or received[found.index(position)] == each


class Trimming(NamedTuple):
    """A recorded request of so many turns, and a later one. Of the history the client sends, with or without
    the opening: single messages of the first turns, and everything from the turn `begin` on.
    """

    turns: int
    later: int
    begin: int
    middle: frozenset[int]
    has_opening: bool

    @property
    def before(self) -> list[Message]:
        return talk(self.turns)

    @property
    def whole(self) -> list[Message]:
        return talk(self.turns + self.later)

    @property
    def sent(self) -> list[Message]:
        whole, begin = self.whole, len(talk(self.begin))
        middle = [whole[at] for at in sorted(self.middle) if _OPENING <= at < begin]
        return [*(whole[:_OPENING] if self.has_opening else []), *middle, *whole[begin:]]


@st.composite
def trimmings(draw: st.DrawFn) -> Trimming:
    turns = draw(st.integers(6, 30))
    begin = draw(st.integers(1, turns - 2))
    middle = draw(st.frozensets(st.integers(0, 3 * begin)))
    trimming = Trimming(turns, draw(st.integers(1, 3)), begin, middle, draw(st.booleans()))
    assume(len(trimming.sent) < len(trimming.whole))
    return trimming


@given(trimmings())
def test_whatever_is_dropped_before_the_end_the_rest_continues_the_history(trimming: Trimming) -> None:
    found = recognize(record(receive(trimming.before)), trimming.sent)
    assert_continues(found, receive(trimming.whole), trimming.sent)
    assert found is not None and found.opening_end == (_OPENING if trimming.has_opening else 0)


@given(trimmings())
def test_of_a_stored_history_less_is_recognized_but_never_wrongly(trimming: Trimming) -> None:
    found = recognize(record(receive(trimming.before), most_links=STORED_LINKS), trimming.sent)
    if found is not None:
        assert_continues(found, receive(trimming.whole), trimming.sent)


def test_what_was_left_of_the_dropped_part_is_no_part_of_the_run() -> None:
    """It stands right before the run in both requests, but the history held more between them."""
    whole, left = talk(20), [each for each in talk(9)[_OPENING:] if not (each.calls or each.results)]
    newest = whole[len(talk(9)) :]
    first = recognize(record(receive(talk(19))), [*talk(0), *left, *newest])
    assert first is not None
    sent = [*talk(0), *left[1:], *newest, *turn(20)]
    assert_continues(recognize(record(first), sent), receive(talk(21)), sent)


def test_shorter_forms_of_old_messages_stand_for_them() -> None:
    whole = talk(20)
    short = [
        message("tool", "[cut]", size=40, result=each.results[0]) if each.results else each
        for each in whole[:30]
    ]
    sent = [*short[10:], *whole[30:]]
    found = recognize(record(receive(talk(19))), sent)
    assert found is not None and found.trim is not None
    assert found.trim.known_from == 10
    assert found.chain[12] == receive(whole).chain[12]


def test_more_shorter_forms_than_messages_are_no_proof() -> None:
    whole = talk(30)
    texts = [each for each in whole[_OPENING:-8] if not (each.calls or each.results)]
    for count in (6, 8):
        short = [each._replace(fingerprint=each.key, size_bytes=9) for each in texts[-count:]]
        found = recognize(record(receive(talk(29))), [*talk(0), *short, *whole[-8:]])
        assert (found is not None) == (count == 6)


@pytest.mark.parametrize(("size", "is_found"), [(600, True), (601, False)])
def test_a_note_with_a_preview_stands_for_a_result(size: int, is_found: bool) -> None:
    long = [each._replace(size_bytes=5_000) if each.results else each for each in talk(20)]
    note = message("tool", "[Trimmed] 200 characters", size=size, result=long[11].results[0])
    sent = [*long[4:11], note, *long[12:]]
    assert (recognize(record(receive(long[: len(talk(19))])), sent) is not None) == is_found


def test_a_note_in_place_of_what_was_dropped_is_no_hindrance() -> None:
    whole, note = talk(20), message("user", "Skipped 18 messages.", size=60)
    sent = [*whole[:_OPENING], note, *whole[20:]]
    assert_continues(recognize(record(receive(talk(19))), sent), receive(whole), sent)
    assert recognize(record(receive(talk(19))), [*whole[:_OPENING], *whole[5:12], note, *whole[20:]]) is None
    stranger = message("user", "Something else.", size=900)
    assert recognize(record(receive(talk(19))), [*whole[:_OPENING], stranger, *whole[20:]]) is None
    assert recognize(record(receive(talk(19))), [note, *whole[20:]]) is None


@pytest.mark.parametrize(("size", "is_found"), [(100, False), (300, True)])
def test_short_messages_are_no_proof(size: int, is_found: bool) -> None:
    whole = [each._replace(size_bytes=size) for each in talk(10)]
    known = record(receive(whole[: len(talk(9))]))
    begin = len(talk(9)) - 4
    assert (recognize(known, whole[begin:]) is not None) == is_found
    assert recognize(known, whole[begin + 1 :]) is None


@st.composite
def strangers(draw: st.DrawFn) -> tuple[list[Message], list[Message]]:
    """A history, and what is sent of another one: they share the rules, maybe the task, and how they end.
    Ids of calls repeat.
    """

    def talk_of(name: str, turns: int) -> list[Message]:
        said = []
        for number in range(turns):
            size, call = draw(st.integers(50, 900)), draw(st.sampled_from(["", f"call_{number}"]))
            said += [
                message("assistant", f"{name} {number}", size, call=call),
                message("tool" if call else "user", f"{name} {number}", size, result=call),
            ]
        return said

    rules, shared = talk(0)[:1], talk_of("shared", draw(st.integers(4, 60)))
    tasks = [message("user", "task a", draw(st.integers(50, 900))), message("user", "task b", 400)]
    own = talk_of("b", draw(st.integers(1, 8)))
    history = [*rules, tasks[0], *talk_of("a", draw(st.integers(0, 8))), *shared]
    kept = draw(st.sets(st.integers(0, len(own) // 2 - 1), min_size=1))
    sent = [each for at, each in enumerate(own) if at // 2 in kept]
    opening = [*rules, draw(st.sampled_from(tasks))] if draw(st.booleans()) else []
    return history, [*opening, *sent, *shared[draw(st.integers(0, len(shared) // 2 - 2)) * 2 :]]


@settings(max_examples=300)
@given(strangers(), st.sampled_from([2_000, STORED_LINKS]))
def test_an_unknown_conversation_with_messages_of_its_own_is_never_taken_for_another(
    pair: tuple[list[Message], list[Message]], most_links: int
) -> None:
    history, sent = pair
    assert recognize(record(receive(history), most_links=most_links), [*sent, *turn(99)]) is None


def test_a_history_that_is_longer_than_its_record_is_recognized_by_all_of_it() -> None:
    whole = talk(900)
    known = record(receive(talk(899)))
    assert known.is_cut
    assert_continues(recognize(known, whole[50:]), receive(whole), whole[50:])
    sent = [message("user", "something else"), *whole[-1_500:]]
    assert recognize(known, sent) is None


def test_two_histories_that_end_alike_are_never_confused() -> None:
    boilerplate = [each for number in range(25) for each in turn(number, "same")]
    first = receive([*talk(5, "a"), *boilerplate])
    sent = [*boilerplate[-30:], *turn(99)]
    assert recognize(record(first), sent) is not None
    assert recognize(record(first, is_crowded=True), sent) is None
    assert recognize(record(first), [*talk(0, "b"), *sent]) is None


def test_nothing_is_recognized_across_tenants_upstreams_models_or_tools() -> None:
    sent = talk(20)[10:]
    assert recognize(record(receive(talk(19))), sent) is not None
    assert recognize(record(receive(talk(19))), sent, owner="other") is None
    assert recognize(record(receive(talk(19)), scope=HistorySource(b"another", is_named=True)), sent) is None


@pytest.mark.parametrize(
    ("dropped", "size", "is_found"),
    [(2, 900, True), (40, 900, True), (46, 900, False), (2, 180, False), (60, 4_000, False)],
    ids=["little is gone", "half is left", "less than half", "a short run", "a long one, but little of all"],
)
def test_without_a_name_the_rest_of_a_history_is_long_and_most_of_what_was_sent(
    dropped: int, size: int, is_found: bool
) -> None:
    whole = [each._replace(size_bytes=size) for each in talk(30)]
    known = record(receive(whole[: -len(turn(29))]))
    sent = whole[dropped:]
    assert recognize(known, sent) is not None
    assert (recognize(known, sent, is_named=False) is not None) == is_found
