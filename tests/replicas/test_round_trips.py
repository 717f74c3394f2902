"""How often a request waits for the shared store before it is sent upstream."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.replicas.test_random_replica import clear_old_results
from tests.toy.agent import PLAIN, Session, Shape, Trim, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.messages import MESSAGES
from tests.toy.replicas import LABEL, Replicas, running_replicas
from tests.toy.responses import RESPONSES
from tests.toy.running import Pace, run_session
from tests.toy.shared_store import SharedStore
from tests.toy.trimming import keep_first_and_newest
from tests.toy.upstream import Seen, ToyUpstream

_TURNS = 40


def make_turns(trim: Trim | None = None) -> Session:
    return replace(make_session(_TURNS, 40, "one_user", 500), trim=trim)


@dataclass(frozen=True)
class Waits:
    """For each turn the reads that its request waited for, without those that a compaction needed."""

    counts: list[int]
    summaries: int


async def play(
    session: Session, choose: Callable[[int], int], shape: Shape = PLAIN, replicas: int = 3
) -> Waits:
    """choose: the replica of a turn."""
    toy = ToyUpstream(window=16_000, bias=1.2)
    async with toy, running_replicas(toy, replicas) as group:
        reached = list[int]()

        def note(seen: Seen) -> None:
            reached.append(count_reads(group))

        toy.intercept = note
        counts = []
        for turn in range(len(session)):
            before = count_reads(group)
            pace = Pace(first=turn, last=turn + 1, headers=LABEL)
            run = await run_session(session, group.gateways[choose(turn)].base_url, toy, shape, pace)
            assert run.failed == []
            # The first request of the turn to reach the upstream may be that of a summary.
            counts.append(reached[0] - before)
            await group.settle()
            reached.clear()
        return Waits(counts, len(toy.summaries))


def count_reads(group: Replicas) -> int:
    stores = [gateway.parts.foundation.stores.main for gateway in group.gateways]
    return sum(store.reads for store in stores if isinstance(store, SharedStore))


async def test_a_replica_that_sees_every_turn_asks_only_what_it_cannot_know() -> None:
    """At the start whether anything was learned about the model, and once how its tokens are counted."""
    waits = await play(make_turns(), lambda _: 0)
    assert waits.summaries > 0
    assert sum(waits.counts) <= 4 and max(waits.counts) <= 2


CASES = [
    pytest.param(CHAT, None, id="chat"),
    pytest.param(MESSAGES, None, id="messages"),
    pytest.param(RESPONSES, None, id="responses"),
    pytest.param(CHAT, keep_first_and_newest(60), id="trimmed"),
    pytest.param(CHAT, clear_old_results(20), id="cleared"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dialect", "trim"), CASES)
async def test_at_another_replica_each_time_a_request_waits_for_two_reads_at_most(
    dialect: Dialect, trim: Trim | None
) -> None:
    waits = await play(make_turns(trim), lambda turn: turn % 3, Shape(max_tokens=1_000, dialect=dialect))
    assert waits.summaries > 0
    assert max(waits.counts) <= 2
    # Mostly one is enough.
    assert sum(waits.counts) <= 1.5 * len(waits.counts)
