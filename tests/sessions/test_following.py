"""Which requests bring something new to a session."""

from gateway.core.policy import Originals, Policy
from gateway.sessions.following import choose_seconds, continues, has_read, may_keep, says_more, with_place
from tests.builders.chat import converse
from tests.builders.sessions import ask, turn_with
from tests.sessions.test_record import make_session

_MESSAGES = [ask(f"{number} is a number") for number in range(60)]


def test_a_request_goes_on_where_the_session_was_read_to() -> None:
    session = with_place(make_session(), converse(_MESSAGES[:40]))
    assert continues(converse(_MESSAGES[:41]), session)
    assert continues(converse(_MESSAGES[:40]), session)
    assert not continues(converse(_MESSAGES[:39]), session)
    assert not continues(converse([*_MESSAGES[:39], ask("another"), *_MESSAGES[40:]]), session)


def test_an_earlier_request_is_known_by_its_end() -> None:
    session = with_place(make_session(), converse(_MESSAGES[:40]))
    assert has_read(session, converse(_MESSAGES[:40]))
    assert has_read(session, converse(_MESSAGES[:20]))
    assert not has_read(session, converse(_MESSAGES[:2])), "too long ago"
    assert not has_read(session, converse(_MESSAGES[:41]))
    assert not has_read(session, converse([*_MESSAGES[:19], ask("another")]))


def test_how_far_it_was_read_says_nothing_new() -> None:
    session = make_session()
    assert not says_more(with_place(session, converse(_MESSAGES)), session)
    assert says_more(make_session(title="x"), session)


def test_what_may_be_kept_is_the_policys() -> None:
    turn = turn_with(_MESSAGES[:1])
    assert may_keep(turn)
    assert choose_seconds(turn, 60.0) == 60.0
    short = turn_with(_MESSAGES[:1], policy=Policy(originals=Originals(days=2)))
    assert choose_seconds(short, 60.0) == 2 * 86_400
    for policy in (Policy(session_summary=False), Policy(originals=Originals(keep=False))):
        assert not may_keep(turn_with(_MESSAGES[:1], policy=policy))
