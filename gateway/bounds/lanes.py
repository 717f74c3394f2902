"""Runs heavy work in threads, so that the event loop stays free for other requests.

Knows nothing of what it runs. A function given to it must not touch what the event loop uses.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_THREADS: Final = 2


class Lanes:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="lane")

    async def run(
        self, owner: str, size_bytes: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The function's result, or its exception.

        owner: the id of the tenant whose work it is. size_bytes: of what the function works on.
        """
        future = self._threads.submit(function, *args, **kwargs)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Gives up what has not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)
