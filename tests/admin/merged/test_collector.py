"""Counters over all workers never go backwards, whatever happens to a worker."""

import asyncio

import pytest

from gateway.admin.merged.collector import MetricsCollector
from gateway.admin.merged.live_workers import LiveWorkers
from tests.toy.running import wait_until
from tests.toy.workers import ToyWorker, running_toys

_PRUNINGS = "gateway_prunings_total"


async def read(collector: MetricsCollector) -> dict[str, float]:
    lines = (await collector.render()).decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def count(toy: ToyWorker, prunings: int) -> None:
    for _ in range(prunings):
        toy.metrics.count_pruning()


async def test_without_workers_only_their_number_is_shown() -> None:
    samples = await read(MetricsCollector(LiveWorkers()))
    assert samples == {"gateway_workers": 0.0, "gateway_workers_replaced_total": 0.0}


async def test_reloads_are_counted_once_however_many_workers_there_are() -> None:
    async with running_toys(2) as (live, _):
        live.count_reload(has_failed=True)
        live.count_reload(has_failed=False)
        live.count_reload(has_failed=False)
        samples = await read(MetricsCollector(live))
    name = "gateway_settings_reloads_total"
    assert {key: value for key, value in samples.items() if key.startswith(name)} == {
        f'{name}{{result="failed"}}': 1.0,
        f'{name}{{result="done"}}': 2.0,
    }


async def test_the_metrics_of_all_workers_are_summed_as_they_are_now() -> None:
    async with running_toys(2) as (live, toys):
        collector = MetricsCollector(live)
        live.count_replaced()
        for number, toy in enumerate(toys):
            count(toy, number + 1)
        assert (await read(collector))[_PRUNINGS] == 3
        count(toys[0], 10)
        samples = await read(collector)
    assert samples[_PRUNINGS] == 13
    assert (samples["gateway_workers"], samples["gateway_workers_replaced_total"]) == (2, 1)


async def test_the_form_is_that_of_one_process() -> None:
    async with running_toys(1) as (live, (toy,)):
        toy.metrics.count_compaction("summary", None)
        text = (await MetricsCollector(live).render()).decode()
    own = toy.metrics.render().decode()
    assert text.startswith(own)
    assert text.removeprefix(own).splitlines() == [
        "# HELP gateway_workers Workers that run.",
        "# TYPE gateway_workers gauge",
        "gateway_workers 1.0",
        "# HELP gateway_workers_replaced_total Workers that were started for others that died.",
        "# TYPE gateway_workers_replaced_total counter",
        "gateway_workers_replaced_total 0.0",
    ]


@pytest.mark.parametrize("is_in_order", [True, False])
async def test_what_an_ended_worker_has_counted_stays(is_in_order: bool) -> None:
    async with running_toys(2) as (live, toys):
        collector = MetricsCollector(live)
        count(toys[0], 5)
        count(toys[1], 1)
        assert (await read(collector))[_PRUNINGS] == 6
        if is_in_order:
            count(toys[0], 2)
            collector.take_farewell(toys[0].socket, toys[0].metrics.render().decode())
            # The worker may still answer. What it says now is already known.
            count(toys[0], 100)
            assert (await read(collector))[_PRUNINGS] == 8
        await toys[0].crash()
        between = (await read(collector))[_PRUNINGS]
        live.remove(toys[0].socket)
        collector.forget(toys[0].socket)
        after = await read(collector)
    expected = 8 if is_in_order else 6
    assert (between, after[_PRUNINGS], after["gateway_workers"]) == (expected, expected, 1)


async def test_a_replacement_counts_on() -> None:
    async with running_toys(1) as (live, (toy,)):
        collector = MetricsCollector(live)
        count(toy, 5)
        await read(collector)
        live.remove(toy.socket)
        collector.forget(toy.socket)
        fresh = ToyWorker(toy.socket.with_suffix(".2"))
        await fresh.start()
        live.add(fresh.socket)
        count(fresh, 1)
        assert (await read(collector))[_PRUNINGS] == 6
        await fresh.crash()


async def test_a_worker_that_does_not_answer_counts_as_it_did_last() -> None:
    async with running_toys(2) as (live, toys):
        collector = MetricsCollector(live)
        count(toys[0], 3)
        count(toys[1], 4)
        assert (await read(collector))[_PRUNINGS] == 7
        toys[0].is_answering.clear()
        count(toys[0], 100)
        count(toys[1], 1)
        assert (await read(collector))[_PRUNINGS] == 8
        toys[0].is_answering.set()
        assert (await read(collector))[_PRUNINGS] == 108


async def test_metrics_are_collected_also_while_nobody_looks() -> None:
    """So a worker that is killed loses no more than its last second."""
    async with running_toys(1) as (live, (toy,)):
        collector = MetricsCollector(live, period_seconds=0.01)
        count(toy, 3)
        running = asyncio.ensure_future(collector.run())
        await wait_until(lambda: toy.shown >= 2)
        running.cancel()
        live.remove(toy.socket)
        collector.forget(toy.socket)
        assert (await read(collector))[_PRUNINGS] == 3


async def test_a_worker_whose_metrics_cannot_be_read_is_left_out() -> None:
    async with running_toys(2) as (live, toys):
        collector = MetricsCollector(live)
        count(toys[0], 3)
        await read(collector)
        collector.take_farewell(toys[1].socket, "not { metrics")
        assert (await read(collector))[_PRUNINGS] == 3
