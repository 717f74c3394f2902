import asyncio

import pytest

from gateway.state.chain_places import ChainPlace
from gateway.state.news import PlaceKind, StateNews
from gateway.store.keys import make_tag
from tests.state.talk import talk
from tests.toy.shared_store import ToyServer

PLACE = ChainPlace(talk(3).chain[3].hex(), 3)


def connect(server: ToyServer) -> StateNews:
    return StateNews(server.connect().news)


async def test_what_one_process_announces_is_news_to_the_others_for_this_tenant_and_chain() -> None:
    server = ToyServer()
    here, there = connect(server), connect(server)
    here.announce_place("pivot", "t", PLACE)
    await asyncio.sleep(0)
    assert there.find("t", talk(5)) == [PLACE]
    assert there.find("t", talk(0)) == there.find("u", talk(5)) == []
    assert here.find("t", talk(5)) == []


async def test_news_is_settled_once_and_may_come_again() -> None:
    server = ToyServer()
    here, there = connect(server), connect(server)
    for _ in range(2):
        here.announce_place("marker", "t", PLACE)
        here.announce_place("marker", "t", PLACE)
        await asyncio.sleep(0)
        assert there.find("t", talk(5)) == [PLACE]
        there.settle("t", PLACE)
        assert there.find("t", talk(5)) == []


async def test_what_memory_has_lost_is_news_here_alone() -> None:
    server = ToyServer()
    here, there = connect(server), connect(server)
    here.note_lost("t", PLACE)
    assert here.find("t", talk(5)) == [PLACE]
    assert there.find("t", talk(5)) == []
    here.forget(make_tag("t"))
    assert here.find("t", talk(5)) == []


async def test_listeners_hear_of_records_and_purges_with_their_tag() -> None:
    server, heard = ToyServer(), list[tuple[str, str, str]]()
    here, there = connect(server), connect(server)
    there.listen("learned", lambda tag, key: heard.append(("learned", tag, key)))
    here.listen("purge", lambda tag, key: heard.append(("purge here", tag, key)))
    there.listen("purge", lambda tag, key: heard.append(("purge", tag, key)))
    here.announce_record("learned", "t", "ab")
    here.announce_record("calibration", "t", "cd")
    here.announce_purge(make_tag("t"))
    await asyncio.sleep(0)
    assert sorted(heard) == [
        ("learned", make_tag("t"), "ab"),
        ("purge", make_tag("t"), ""),
        ("purge here", make_tag("t"), ""),
    ]


@pytest.mark.parametrize(
    "text", ["", "pivot", "pivot xy 3", "pivot ab", "pivot ab x", "pivot ab 3 4", "else ab"]
)
async def test_what_another_version_announces_is_ignored(text: str) -> None:
    server = ToyServer()
    sender, there = server.connect(), connect(server)
    sender.news.announce(make_tag("t"), text)
    await asyncio.sleep(0)
    assert there.find("t", talk(5)) == []


async def test_a_compaction_of_another_process_is_known_until_it_ends() -> None:
    server = ToyServer()
    here, there = connect(server), connect(server)
    ends: tuple[PlaceKind, ...] = ("idle", "pivot")
    for end in ends:
        here.announce_place("compacting", "t", PLACE)
        await asyncio.sleep(0)
        assert there.find_compacting("t", talk(5)) == [PLACE]
        assert there.find_compacting("u", talk(5)) == here.find_compacting("t", talk(5)) == []
        assert there.find("t", talk(5)) == []
        here.announce_place(end, "t", PLACE)
        await asyncio.sleep(0)
        assert there.find_compacting("t", talk(5)) == []
    here.announce_place("compacting", "t", PLACE)
    await asyncio.sleep(0)
    there.forget(make_tag("t"))
    assert there.find_compacting("t", talk(5)) == []
