"""How much memory a piece of work leaves behind, as Python counts it: the same figure on every machine."""

import gc
import tracemalloc
from collections.abc import Callable


def measure_growth(work: Callable[[], object]) -> int:
    """Bytes that are allocated during the work and are still in use afterwards."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def measure_peak(work: Callable[[], object]) -> int:
    """The most bytes in use at a time during the work, beyond those in use before."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
