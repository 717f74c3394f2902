"""Which settings a request is served by: those that held when it began, until it ends.

New settings take over by one assignment. What they replace is closed when its last request and its last
background task have ended. The foundation stays: state, caches, and the compactions in progress.
"""

import asyncio
import logging

from gateway.downstream.request import Request
from gateway.downstream.response import Response
from gateway.mcp.endpoint import is_mcp
from gateway.settings import Settings
from gateway.wiring import Current, Foundation, Generation, build_generation

log = logging.getLogger("gateway.reload")


class Generations:
    def __init__(self, foundation: Foundation, current: Current) -> None:
        self._foundation = foundation
        self._current = current
        # Those that finish, each with the task that waits for its end.
        self._finishing: dict[asyncio.Task[None], Generation] = {}
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def settings(self) -> Settings:
        """Those that hold now."""
        return self._current.generation.settings

    @property
    def is_idle(self) -> bool:
        """True if no learning or compaction runs in the background."""
        return all(each.compaction.compactor.is_idle for each in self._list())

    async def open(self) -> None:
        await self._current.generation.pipeline.relay.open()

    def check_upstreams(self) -> None:
        """In the background. Those that an earlier generation had are left out."""
        check = self._current.generation.limits.start_check
        task = asyncio.get_running_loop().create_task(check.run(), name="check of upstreams")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def respond(self, request: Request) -> Response | None:
        generation = self._current.generation
        generation.requests.begin()
        try:
            if generation.mcp is not None and is_mcp(request.head.target):
                return await generation.mcp.respond(request)
            return await generation.pipeline.proxy.respond(request)
        finally:
            generation.requests.end()

    async def replace(self, settings: Settings) -> None:
        """Requests that begin from now on are served by these settings."""
        before = self._current.generation
        after = build_generation(settings, self._foundation, before)
        if after.pipeline.relay is not before.pipeline.relay:
            await after.pipeline.relay.open()
        self._current.generation = after
        self._foundation.use_prices(settings)
        # They hold upstreams, credentials and policies of the settings before.
        self._foundation.registry.forget_turns()
        task = asyncio.get_running_loop().create_task(self._finish(before), name="generation")
        self._finishing[task] = before
        task.add_done_callback(self._note_end)

    async def close(self) -> None:
        """Cancels what is under way in the background. Markers of compactions stay, see Compactor."""
        living = self._list()
        tasks = [*self._finishing, *self._checks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in living:
            await each.compaction.compactor.close()
        for each in living:
            await each.limits.discovery.close()
        for relay in {id(each.pipeline.relay): each.pipeline.relay for each in living}.values():
            await relay.close()

    async def _finish(self, generation: Generation) -> None:
        await generation.requests.finish()
        await generation.compaction.compactor.finish()
        await generation.limits.discovery.close()
        relay = generation.pipeline.relay
        if not any(each.pipeline.relay is relay for each in self._list() if each is not generation):
            await relay.close()

    def _list(self) -> list[Generation]:
        return [self._current.generation, *self._finishing.values()]

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        self._finishing.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("settings before a reload not closed: %s", type(task.exception()).__name__)
