"""What the interpreter does for threads and for garbage."""

import asyncio
import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from gateway.bounds.interpreter import collect_garbage, import_for_good, tune_interpreter


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


@pytest.mark.usefixtures("interpreter")
def test_what_an_import_makes_is_not_looked_at_and_a_second_import_changes_nothing() -> None:
    sys.modules.pop("tabnanny", None)
    frozen = gc.get_freeze_count()
    module = import_for_good("tabnanny")
    assert module.__name__ == "tabnanny"
    once = gc.get_freeze_count()
    assert once > frozen and gc.isenabled()
    assert import_for_good("tabnanny") is module
    # Garbage collection may make it less, and freezing again would make it more.
    assert gc.get_freeze_count() <= once


def test_an_import_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError):
        import_for_good("gateway.bounds.missing")
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
