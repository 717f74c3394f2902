"""When a request is planned at once, what it waits for, and what that may cost."""

import asyncio
import json
from typing import Any

from gateway.conversations.turn import Turn
from gateway.core.compaction.plan import Plan
from gateway.core.compaction.request import CompactionResult
from gateway.core.compaction.summary import Rejected
from gateway.core.history.pivot import Pivot
from gateway.core.policy import Summary
from gateway.pipeline.planning_step import WaitBudget
from gateway.settings import Keepalive
from tests.builders.chat import make_pivot, read, render
from tests.builders.pipeline import SETTINGS, Pipeline, responding, running_pipeline

_SUMMARY = Summary(max_calls=3, deadline_seconds=60)
_PIVOT = make_pivot(read(render([{"role": "user", "content": "Go on."}])).conversation, 1)


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


async def finish(outcome: Pivot | Rejected, calls: int) -> "asyncio.Task[CompactionResult]":
    async def compact() -> CompactionResult:
        return CompactionResult(outcome, calls)

    task = asyncio.create_task(compact())
    await asyncio.wait((task,))
    return task


def test_the_time_runs_from_the_first_wait_on() -> None:
    clock = Clock()
    budget = WaitBudget(_SUMMARY, clock)
    clock.seconds += 1_000
    assert budget.seconds_left == 60
    budget.start()
    clock.seconds += 20
    budget.start()
    assert budget.seconds_left == 40


async def test_a_compaction_costs_its_calls() -> None:
    budget = WaitBudget(_SUMMARY, Clock())
    budget.spend(await finish(_PIVOT, 2))
    assert (budget.calls_left, budget.has_compacted) == (1, True)
    budget.spend(await finish(_PIVOT, 2))
    assert budget.calls_left == 0


async def test_a_failed_compaction_ends_the_budget() -> None:
    budget = WaitBudget(_SUMMARY, Clock())
    budget.spend(await finish(Rejected("empty"), 1))
    assert (budget.calls_left, budget.has_compacted) == (0, False)


async def test_a_compaction_that_takes_too_long_ends_the_budget() -> None:
    clock = Clock()
    budget = WaitBudget(_SUMMARY, clock)
    budget.start()
    task: asyncio.Task[CompactionResult] = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    budget.spend(task)
    assert budget.calls_left == 0
    task.cancel()


async def test_a_compaction_that_comes_in_with_the_deadline_is_not_counted_on() -> None:
    clock = Clock()
    budget = WaitBudget(_SUMMARY, clock)
    budget.start()
    clock.seconds += 60
    budget.spend(await finish(_PIVOT, 1))
    assert (budget.calls_left, budget.has_compacted) == (0, False)


def test_a_limit_leaves_no_more_calls_than_it_says() -> None:
    budget = WaitBudget(_SUMMARY, Clock())
    budget.limit(8)
    assert budget.calls_left == 3
    budget.limit(1)
    assert budget.calls_left == 1


def make_talk(turns: int, size: int = 400) -> bytes:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix the parser."}]
    for number in range(turns):
        messages += [
            {"role": "assistant", "content": f"{number} " + "said " * (size // 5)},
            {"role": "user", "content": f"{number} " + "more " * (size // 5)},
        ]
    return json.dumps({"model": "toy", "messages": messages}).encode()


async def plan(pipeline: Pipeline, turn: Turn) -> tuple[Plan, bytes]:
    """The plan, and what the client was sent until it was made."""
    async with responding(Keepalive(after_seconds=30)) as (client, line):
        planned = await pipeline.proxy.planning.plan(turn, WaitBudget(turn.policy.summary), client)
        return planned, line.written


async def test_far_below_the_thresholds_nothing_changes_and_nothing_is_measured() -> None:
    async with running_pipeline() as pipeline:
        turn = await pipeline.build(make_talk(1))
        planned, written = await plan(pipeline, turn)
    assert planned.pivot is None and not planned.batches and planned.output is None
    assert written == b""


async def test_a_request_that_the_window_cannot_hold_waits_for_its_compaction() -> None:
    async with running_pipeline() as pipeline:
        turn = await pipeline.build(make_talk(40))
        planned, _ = await plan(pipeline, turn)
    assert turn.thresholds is not None
    assert planned.pivot is not None and planned.pivot.is_digest
    assert planned.sent <= turn.thresholds.hard < planned.received


async def test_without_automatic_compaction_it_is_sent_as_it_is() -> None:
    text = SETTINGS.replace("estimator", "compaction: {auto: false, prune: false}, estimator")
    async with running_pipeline(text) as pipeline:
        planned, _ = await plan(pipeline, await pipeline.build(make_talk(40)))
    assert planned.pivot is None and planned.warning is not None


async def test_a_measured_plan_has_the_size_that_was_counted() -> None:
    async with running_pipeline() as pipeline, responding() as (client, _):
        turn = await pipeline.build(make_talk(2))
        rough = await pipeline.proxy.planning.plan(turn, WaitBudget(turn.policy.summary), client)
        measured = await pipeline.proxy.planning.with_counted_size(turn, rough, client)
    assert measured.pivot is rough.pivot and measured.batches == rough.batches
    assert 0 < measured.sent != rough.sent


async def test_planning_ends_when_the_client_hangs_up() -> None:
    async with running_pipeline() as pipeline, responding(Keepalive(after_seconds=30)) as (client, _):
        turn = await pipeline.build(make_talk(1, size=8_000_000))
        before = asyncio.all_tasks()
        planning = asyncio.create_task(
            pipeline.proxy.planning.plan_measured(turn, WaitBudget(turn.policy.summary), client)
        )
        while len(asyncio.all_tasks() - before) < 2:
            await asyncio.sleep(0)
        planning.cancel()
        await asyncio.wait((planning,))
        # One round of the event loop, and what was under way for this request alone has ended.
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before
