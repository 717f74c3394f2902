"""What the tests and the bench of hostile cases stand on: a gateway as a process, and the meter of stalls."""

import os
import signal
from pathlib import Path

import pytest

from bench.stall import StallMeter, make_stall
from tests.hostile.process import linux_only, running_process
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import make_settings
from tests.toy.running import Pace, run_session
from tests.toy.upstream import ToyUpstream
from tests.wire_through.raw import ask, render_request

SHAPE = Shape(max_tokens=1_000)


async def test_a_gateway_goes_on_after_kill_9_on_the_same_store(tmp_path: Path, store_url: str) -> None:
    async with ToyUpstream(window=64_000) as toy:
        settings = make_settings(toy, store=store_url)
        async with running_process(settings, tmp_path) as gateway:
            session = make_session(8, 3, "one_user", 900)
            before = await run_session(session, gateway.base_url, toy, SHAPE, Pace(last=4))
            await gateway.kill()
            assert not gateway.is_running
            await gateway.start()
            after = await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=4))
            assert before.failed == after.failed == []
            assert after.conversation == before.conversation
            assert "Traceback" not in gateway.log
            assert await gateway.stop() == 0


async def test_a_gateway_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="upstreamz"):
        async with running_process("upstreamz: {}\n", tmp_path):
            pass


@linux_only
async def test_memory_and_its_peak_are_those_of_the_process(tmp_path: Path) -> None:
    async with ToyUpstream(window=16_000) as toy, running_process(make_settings(toy), tmp_path) as gateway:
        assert 20_000_000 < gateway.rss_bytes <= gateway.peak_rss_bytes
        gateway.forget_peak()
        before = gateway.peak_rss_bytes
        body = b'{"model":"toy-model","messages":[],"more":"' + b"x" * 30_000_000 + b'"}'
        await ask(gateway.port, render_request(body=body))
        # The body is held whole at least once.
        assert gateway.peak_rss_bytes - before > len(body)


async def test_the_meter_counts_a_question_that_is_not_answered_yet(tmp_path: Path) -> None:
    async with ToyUpstream(window=16_000) as toy, running_process(make_settings(toy), tmp_path) as gateway:
        async with StallMeter(gateway.port) as meter:
            os.kill(gateway.pid, signal.SIGSTOP)
        os.kill(gateway.pid, signal.SIGCONT)
    assert meter.stall.asked > 0
    assert meter.stall.lost == 0


def test_a_long_wait_counts_as_all_those_that_it_kept_from_asking() -> None:
    # 0.5 s, 0.49 s, … 0 s and 149 quick ones are 200 in all, of which one is longer than 99 of 100.
    stall = make_stall([0.001] * 149 + [0.5], lost=0)
    assert stall.longest_seconds == 0.5
    assert stall.p99_seconds == pytest.approx(0.49)
    assert stall.asked == 150
