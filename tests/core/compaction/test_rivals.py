"""Which places of a chain other processes may be cutting at the same time."""

from dataclasses import replace

from gateway.core.compaction.rivals import find_cut_key, list_newer_keys, list_rival_keys
from gateway.core.history.conversation import Trim, find_open_group
from tests.builders.chat import JSON, converse, make_pivot
from tests.builders.compaction import make_cut, talk

_CONVERSATION = converse(talk(8))
_LAST = len(_CONVERSATION.messages)


def keys_of(*positions: int) -> list[str]:
    return [_CONVERSATION.chain[at].hex() for at in positions]


def test_rivals_are_all_other_places_behind_the_opening() -> None:
    cut = make_cut(5)
    assert [find_cut_key(_CONVERSATION, cut)] == keys_of(5)
    rivals = list_rival_keys(_CONVERSATION, cut)
    assert rivals == keys_of(*range(_LAST, 5, -1), 4, 3, 2)


def test_what_the_cut_builds_on_is_no_rival() -> None:
    assert list_rival_keys(_CONVERSATION, make_cut(7, make_pivot(_CONVERSATION, 5))) == keys_of(
        *range(_LAST, 7, -1), 6
    )


def test_conversations_that_share_their_opening_alone_are_no_rivals() -> None:
    """Nor are the branches of one conversation, from where they part."""
    other: list[JSON] = [talk(1)[0], {"role": "assistant", "content": "Another step."}, *talk(8)[2:]]
    cut = make_cut(5)
    ours = {find_cut_key(_CONVERSATION, cut), *list_rival_keys(_CONVERSATION, cut)}
    theirs = converse(other)
    assert ours.isdisjoint([find_cut_key(theirs, cut), *list_rival_keys(theirs, cut)])


def test_a_longer_request_of_the_conversation_has_the_cut_of_a_shorter_one_among_its_rivals() -> None:
    shorter = converse(talk(6))
    key = find_cut_key(shorter, make_cut(9))
    assert key in list_rival_keys(_CONVERSATION, make_cut(13))


def test_a_newer_pivot_ends_before_the_open_group_or_at_the_cut() -> None:
    open_group = find_open_group(_CONVERSATION)
    assert open_group < _LAST
    assert list_newer_keys(_CONVERSATION, make_cut(5)) == keys_of(*range(open_group, 1, -1))
    assert list_newer_keys(_CONVERSATION, make_cut(_LAST))[0] == keys_of(_LAST)[0]


def test_links_that_stand_for_nothing_are_left_out() -> None:
    trim = Trim(tuple(range(6, _LAST)), known_from=7)
    trimmed = replace(_CONVERSATION, trim=trim)
    assert list_rival_keys(trimmed, make_cut(9)) == keys_of(*range(_LAST, 9, -1), 8, 7)


def test_of_a_long_conversation_only_the_places_near_the_cut_are_named() -> None:
    long = converse(talk(1_500, 4))
    rivals = list_rival_keys(long, make_cut(1_501))
    assert len(rivals) == 1_000
    assert (rivals[0], rivals[-1]) == (long.chain[2_001].hex(), long.chain[1_001].hex())
