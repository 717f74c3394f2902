"""What is set and watched in this process: descriptors, allocator, interpreter, and how late its loop is."""

import asyncio
import ctypes
import gc
import importlib
import logging
import resource
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Final

log = logging.getLogger("gateway.connections")

# Descriptors that no client gets: each request needs two, one for its client and one for its upstream, and
# the admin port, the store and calls of the gateway's own need some.
_RESERVED: Final = 128
# Systems without a limit refuse this number or a larger one (macOS: OPEN_MAX).
_MOST: Final = 10_240
# See mallopt(3). glibc raises its own thresholds whenever a large block is freed, up to 32 MB. From then on
# bodies come from the heap, where a small block behind one keeps all of it: after three rounds of twelve
# requests of 20 MB a gateway kept 640 MB, and 216 MB with fixed thresholds.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Usual bodies are smaller, and for them the heap is faster.
_MMAP_BYTES: Final = 1 << 20
# Free memory at the end of the heap that is kept for the next requests.
_TRIM_BYTES: Final = 16 << 20
# Objects made before the collector looks at the new ones, and collections of each generation before the next
# older one is collected, too. The caches hold some hundred thousand objects; with Python's defaults, looking
# at them again and again takes a tenth of the time. With 20 instead of 5, one collection takes 40 ms.
_THRESHOLDS: Final = (10_000, 5, 100)
# Large things that refer to each other, such as a failed request and its body, are few objects, and would
# wait for the thresholds for hours. All objects are looked at in 30 to 60 ms.
_COLLECT_SECONDS: Final = 60.0
# A thread that executes Python gives way to the event loop after this time. With Python's 5 ms, 100
# connections with 20 events a second beside one busy thread are served 74 ms late (median), with 1 ms 2 ms.
_SWITCH_SECONDS: Final = 0.001
# Often enough to see a step of some ten milliseconds now and then, and too rare to cost anything.
_PERIOD_SECONDS: Final = 0.5


def raise_limit() -> None:
    """Raises the soft limit of descriptors to the hard one, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of file descriptors stays at %d: %s", soft, error)


def count_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else soft


def find_most_connections(descriptors: int) -> int:
    """How many clients may be connected, so that each of them can have an upstream connection, too."""
    return max(1, (descriptors - _RESERVED) // 2)


def find_fence(descriptors: int) -> int:
    """The number of the first descriptor that no client gets: new descriptors have the lowest free number."""
    return descriptors - min(_RESERVED, descriptors // 2) // 2


def return_freed_memory() -> bool:
    """For the whole process, from now on. False where the C library has no such settings."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(
        set_option(_M_TRIM_THRESHOLD, _TRIM_BYTES)
    )


def tune_interpreter() -> None:
    """Call it once everything that stays has been made: the collector never looks at that again."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def import_for_good(name: str) -> ModuleType:
    """Imports a large module in a running process. Call it in a thread. Raises ImportError.

    The collector would look at all that an import makes several times, in pauses of 50 to 150 ms, and again
    once a minute. So it pauses meanwhile, and never looks at what has been made then.
    """
    if name in sys.modules:
        return importlib.import_module(name)
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        module = importlib.import_module(name)
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
    return module


async def collect_garbage(every_seconds: float = _COLLECT_SECONDS) -> None:
    """Collects all garbage again and again until it is cancelled."""
    while True:
        await asyncio.sleep(every_seconds)
        gc.collect()


async def sample_loop_delay(note: Callable[[float], None], period_seconds: float = _PERIOD_SECONDS) -> None:
    """Never returns. note: gets how many seconds later than planned this task went on."""
    while True:
        planned_seconds = time.monotonic() + period_seconds
        await asyncio.sleep(period_seconds)
        note(max(0.0, time.monotonic() - planned_seconds))
