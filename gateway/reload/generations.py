"""Which settings a request is served by: those that held when it began, until it ends.

New settings take over by one assignment. What they replace is closed when its last request and its last
background task have ended. The foundation stays: state, caches, and the compactions in progress.
"""

import asyncio
import logging
from typing import Final

from aiohttp import hdrs

from gateway.http.reply import Reply
from gateway.http.request import Request, RequestHead
from gateway.mcp.endpoint import is_mcp
from gateway.settings import Settings
from gateway.wiring import Current, Foundation, Generation, build_generation

log = logging.getLogger("gateway.reload")

# A browser asks no more often.
_PREFLIGHT_SECONDS: Final = 600


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

    def check_upstreams(self) -> None:
        """In the background. Those that an earlier generation had are left out."""
        check = self._current.generation.limits.start_check
        task = asyncio.get_running_loop().create_task(check.run(), name="check of upstreams")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def respond(self, request: Request, reply: Reply) -> None:
        generation = self._current.generation
        generation.requests.begin()
        try:
            reply.origin = _find_page(request.head, generation.settings)
            if reply.origin is not None and _is_preflight(request.head):
                await reply.answer(204, b"", _make_permission(request.head))
            elif generation.mcp is not None and is_mcp(request.head.target):
                await generation.mcp.respond(request, reply)
            else:
                await generation.pipeline.proxy.respond(request, reply)
        finally:
            generation.requests.end()

    async def replace(self, settings: Settings) -> None:
        """Requests that begin from now on are served by these settings."""
        before = self._current.generation
        after = build_generation(settings, self._foundation, before)
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

    async def _finish(self, generation: Generation) -> None:
        await generation.requests.finish()
        await generation.compaction.compactor.finish()
        await generation.limits.discovery.close()

    def _list(self) -> list[Generation]:
        return [self._current.generation, *self._finishing.values()]

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        self._finishing.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("settings before a reload not closed: %s", type(task.exception()).__name__)


def _find_page(head: RequestHead, settings: Settings) -> str | None:
    """The origin of the page that asks, if it may, and if the gateway has to say so.

    Without tenants the upstream answers for itself. With them a browser asks without a key, so that nobody
    knows which upstream it means.
    """
    origin = head.headers.get(hdrs.ORIGIN) if settings.tenants else None
    return origin if origin in settings.listen.origins else None


def _is_preflight(head: RequestHead) -> bool:
    return head.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in head.headers


def _make_permission(head: RequestHead) -> dict[str, str]:
    """Whatever the page wants to send: the key decides on the request itself
    (https://fetch.spec.whatwg.org/#http-cors-protocol).
    """
    permission = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: head.headers[hdrs.ACCESS_CONTROL_REQUEST_METHOD],
        hdrs.ACCESS_CONTROL_MAX_AGE: str(_PREFLIGHT_SECONDS),
    }
    wanted = head.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS)
    if wanted is not None:
        permission[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = wanted
    return {str(name): value for name, value in permission.items()}
