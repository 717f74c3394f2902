"""What the interpreter does for threads and for garbage."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from gateway.bounds.interpreter import collect_garbage, tune_interpreter


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def interpreter() -> Iterator[None]:
    """Whatever a test sets is set back."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("interpreter")
def test_a_busy_thread_gives_way_sooner_and_what_stays_is_not_looked_at_again() -> None:
    interval, frozen = sys.getswitchinterval(), gc.get_freeze_count()
    tune_interpreter()
    assert sys.getswitchinterval() < interval
    assert gc.get_freeze_count() > frozen
    assert gc.isenabled()


async def test_garbage_that_no_threshold_would_reach_is_collected_after_a_while() -> None:
    gc.disable()
    try:
        ring = Ring()
        gone = weakref.ref(ring)
        del ring
        collecting = asyncio.create_task(collect_garbage(every_seconds=0))
        while gone() is not None:
            await asyncio.sleep(0)
    finally:
        gc.enable()
    collecting.cancel()
