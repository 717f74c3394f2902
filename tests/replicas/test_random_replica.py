"""Turns of one conversation go to a replica drawn by chance: it costs no more than with one process."""

from dataclasses import dataclass, replace

import pytest

from tests.covering import choose
from tests.toy.agent import Message, Session, Shape, Trim, make_session
from tests.toy.chat import CHAT
from tests.toy.dialect import Dialect
from tests.toy.economics import prefix_breaks, prefix_reuse
from tests.toy.messages import MESSAGES
from tests.toy.redis_server import RedisServer, requires_redis
from tests.toy.replicas import running_replicas
from tests.toy.responses import RESPONSES
from tests.toy.running import Run
from tests.toy.trimming import drop_oldest_results, keep_first_and_newest
from tests.toy.upstream import ToyUpstream

WINDOW = 32_000
BIAS = 1.2
TURNS = 60


def clear_old_results(kept: int) -> Trim:
    """As opencode does: all results but the newest ones become a placeholder."""

    def trim(history: list[Message]) -> list[Message]:
        results = [at for at, message in enumerate(history) if message["role"] == "tool"]
        cleared = set(results[: max(len(results) - kept, 0) // kept * kept])
        text = "[Old tool result content cleared]"
        return [
            {**message, "content": text} if at in cleared else message for at, message in enumerate(history)
        ]

    return trim


def _clear(message: Message) -> Message:
    return {**message, "content": "[Old tool result content cleared]"}


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    replicas: int
    dialect: Dialect = CHAT
    trim: Trim | None = None
    turn_tokens: int = 750

    @property
    def session(self) -> Session:
        return replace(make_session(TURNS, 60, "one_user", self.turn_tokens), trim=self.trim)

    @property
    def shape(self) -> Shape:
        return Shape(max_tokens=1_000, dialect=self.dialect)

    def __str__(self) -> str:
        return f"{self.name}, {self.replicas} replicas"


CASES = [
    Case(name=name, replicas=count, dialect=dialect, trim=trim, turn_tokens=tokens)
    for count in (2, 3)
    for name, dialect, trim, tokens in (
        ("chat", CHAT, None, 750),
        ("messages", MESSAGES, None, 750),
        ("responses", RESPONSES, None, 750),
        ("first and newest 80", CHAT, keep_first_and_newest(80), 1_100),
        ("without the oldest results", CHAT, drop_oldest_results(28_000, keeps_texts=False), 1_100),
        ("cleared results", CHAT, clear_old_results(20), 1_100),
    )
]


@dataclass(frozen=True)
class Cost:
    summaries: int
    reuse: float
    breaks: int
    plans: tuple[str | None, ...]


async def measure(case: Case, count: int, url: str = "") -> Cost:
    async with ToyUpstream(window=WINDOW, bias=BIAS) as toy, running_replicas(toy, count, url) as replicas:
        run = await replicas.play(case.session, 7, case.shape)
    assert run.failed == [] and run.refusals == [] and run.replays == ()
    return read_cost(run)


def read_cost(run: Run) -> Cost:
    bodies = [seen.body for seen in run.outgoing]
    return Cost(len(run.summaries), prefix_reuse(bodies), len(prefix_breaks(bodies)), tuple(run.plans))


def assert_no_dearer(shared: Cost, alone: Cost) -> None:
    assert alone.summaries > 0
    assert shared.summaries <= alone.summaries
    assert shared.reuse >= alone.reuse - 0.005
    assert shared.breaks <= alone.breaks


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", choose(CASES, [8, 9, 5]), ids=str)
async def test_a_replica_drawn_by_chance_costs_no_more_than_one_process(case: Case) -> None:
    assert_no_dearer(await measure(case, case.replicas), await measure(case, 1))


@requires_redis
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", choose(CASES, [6]), ids=str)
async def test_a_replica_drawn_by_chance_costs_no_more_with_redis(
    case: Case, empty_redis: RedisServer
) -> None:
    shared = await measure(case, case.replicas, empty_redis.patient_url)
    assert_no_dearer(shared, await measure(case, 1))
