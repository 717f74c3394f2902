"""Settings of the Python interpreter, for a process with an event loop, heavy threads and large caches."""

import asyncio
import gc
import importlib
import sys
from types import ModuleType
from typing import Final

# Objects made before the collector looks at the new ones, and collections of each generation before the next
# older one is collected, too. The caches hold some hundred thousand objects; with Python's defaults, looking
# at them again and again takes a tenth of the time. With 20 instead of 5, one collection takes 40 ms.
_THRESHOLDS: Final = (10_000, 5, 100)
# Large things that refer to each other, such as a failed request and its body, are few objects, and would
# wait for the thresholds for hours. All objects are looked at in 30 to 60 ms.
_COLLECT_SECONDS: Final = 60.0
# A thread that executes Python gives way to the event loop after this time. With Python's 5 ms, the loop
# waits for it again and again: beside one busy thread 100 connections with 20 events a second each are served
# 74 ms late (median), with 1 ms 2 ms late.
_SWITCH_SECONDS: Final = 0.001


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
