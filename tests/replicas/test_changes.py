"""What is changed through one replica holds at every other one from the next request on."""

import asyncio

from gateway.conversations.turn import Turn
from gateway.core.limits.model_limits import Limits
from gateway.limits.book import ServedModel
from gateway.store.keys import make_tag
from tests.toy.agent import make_session
from tests.toy.replicas import Replicas, running_replicas
from tests.toy.running import Pace, Run, run_session, wait_until
from tests.toy.upstream import ToyUpstream

# Some 5,000 tokens of 16,000 after eight turns: far below the thresholds.
_SESSION = make_session(40, 7, "one_user", 500)
_TURNS = 8


async def play(replicas: Replicas, replica: int, first: int, last: int) -> Run:
    pace = Pace(first=first, last=last)
    run = await run_session(_SESSION, replicas.gateways[replica].base_url, replicas.toy, pace=pace)
    assert run.failed == [] and run.refusals == []
    await replicas.settle()
    return run


def find_turn(replicas: Replicas, replica: int, conversation: str) -> Turn:
    turn = replicas.gateways[replica].parts.foundation.registry.find_turn(conversation)
    assert turn is not None
    return turn


async def test_a_compaction_by_hand_applies_at_the_other_replica_below_the_thresholds() -> None:
    """The other one has seen the turn before, so that only the news tells it."""
    async with ToyUpstream(window=16_000) as toy, running_replicas(toy, 2) as replicas:
        await play(replicas, 0, 0, _TURNS)
        run = await play(replicas, 1, _TURNS - 1, _TURNS + 1)
        assert set(run.plans) == {"passthrough"} and toy.summaries == []
        manual = replicas.gateways[0].parts.current.generation.compaction.manual
        task = manual.compact(find_turn(replicas, 0, run.conversation), "Keep names.")
        assert task is not None
        await task
        await replicas.settle()
        after = await play(replicas, 1, _TURNS + 1, _TURNS + 3)
        again = await play(replicas, 0, _TURNS + 3, _TURNS + 4)
    assert after.plans == ["pivot", "pivot"] and again.plans == ["pivot"]
    assert len(toy.summaries) == 1


async def test_a_limit_that_one_replica_was_taught_holds_at_the_other_one() -> None:
    async with ToyUpstream(window=16_000) as toy, running_replicas(toy, 2) as replicas:
        run = await play(replicas, 0, 0, 2)
        await play(replicas, 1, 0, 2)
        turn = find_turn(replicas, 0, run.conversation)
        served = ServedModel(turn.owner, turn.upstream.name, turn.model)
        books = [gateway.parts.current.generation.limits.book for gateway in replicas.gateways]
        books[0].learn(served, Limits(output=700))
        await asyncio.sleep(0)
        assert books[1].find(served) is None
        assert (await books[1].load(served)).output == 700


async def test_a_purge_at_one_replica_leaves_nothing_in_the_memory_of_the_other_one() -> None:
    async with ToyUpstream(window=16_000) as toy, running_replicas(toy, 2) as replicas:
        run = await play(replicas, 0, 0, 20)
        await play(replicas, 1, 20, 24)
        tag = make_tag(find_turn(replicas, 1, run.conversation).owner)
        here, there = [gateway.parts.foundation for gateway in replicas.gateways]
        assert there.state.heads.size_bytes and there.state.pivots.size_bytes
        await here.stores.main.purge(tag)
        here.state.news.announce_purge(tag)
        await asyncio.sleep(0)
        for each in (here, there):
            assert each.state.heads.size_bytes == each.state.pivots.size_bytes == 0
            assert each.registry.list(None, 10) == []
        await wait_until(lambda: replicas.gateways[0].app.is_idle)
        # It begins anew.
        after = await play(replicas, 1, 24, 26)
    assert after.plans[-1] is not None
