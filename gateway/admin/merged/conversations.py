"""Pages about conversations, asked of all workers or of the one that knows most.

What lies in the store (the log and the originals) any worker can tell, also of a conversation that it never
saw. A worker that does not answer within a second is left out.
"""

from typing import Final
from urllib.parse import quote

from aiohttp import web

from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.ranking import Ranking, merge_lists, put_bodies_first, rank
from gateway.admin.merged.worker_client import WorkerPage, ask, ask_all

_LIST: Final = "/api/conversations"
_MAX_CONVERSATIONS: Final = 500
# For a page that is read from the store, or work that is begun, at a worker that has just answered.
_LONG_SECONDS: Final = 15.0
# A large store is written anew.
_LONGEST_SECONDS: Final = 600.0


class MergedConversations:
    def __init__(self, workers: LiveWorkers) -> None:
        self._workers = workers

    def routes(self) -> list[web.RouteDef]:
        one = _LIST + "/{id}"
        return [
            web.get(_LIST, self._list),
            web.get(one, self._show),
            web.post(one + "/compact", self._compact),
            web.get(one + "/log", self._show_stored),
            web.get(one + "/originals", self._show_stored),
            web.get(one + "/originals/{digest}", self._show_stored),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        answers = await ask_all(self._workers.sockets, request.path_qs)
        pages = [answer.parse() for answer in answers if isinstance(answer, WorkerPage)]
        if not pages:
            return _respond_busy()
        return web.json_response({"conversations": merge_lists(pages)[:_MAX_CONVERSATIONS]})

    async def _show(self, request: web.Request) -> web.Response:
        ranking = await self._rank(request)
        return _respond(ranking.knowing[0][1]) if ranking.knowing else _respond_unknown(ranking)

    async def _show_stored(self, request: web.Request) -> web.Response:
        """404 only if no worker finds it."""
        ranking = await self._rank(request)
        missing = None
        for socket in ranking.sockets:
            answer = await ask(socket, request.path_qs, seconds=_LONG_SECONDS)
            if isinstance(answer, WorkerPage) and answer.status != 404:
                return _respond(answer)
            missing = answer if isinstance(answer, WorkerPage) else missing
        return _respond_busy() if missing is None or ranking.has_silent else _respond(missing)

    async def _compact(self, request: web.Request) -> web.Response:
        """At the worker with the newest body. If it ends at that moment, the next one has the next newest."""
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return web.json_response({"error": "the body is too large"}, status=400)
        ranking = await self._rank(request)
        if not ranking.knowing:
            return _respond_unknown(ranking)
        for socket in put_bodies_first(ranking):
            answer = await ask(socket, request.path_qs, method="POST", body=body, seconds=_LONG_SECONDS)
            if isinstance(answer, WorkerPage) and answer.status != 404:
                return _respond(answer)
        return _respond_busy()

    async def pass_on(self, request: web.Request) -> web.Response:
        """To one worker, which tells the others by the store."""
        body = await request.read()
        for socket in self._workers.sockets:
            answer = await ask(socket, request.path_qs, method="POST", body=body, seconds=_LONGEST_SECONDS)
            if isinstance(answer, WorkerPage):
                return _respond(answer)
        return _respond_busy()

    async def _rank(self, request: web.Request) -> Ranking:
        sockets = self._workers.sockets
        path = f"{_LIST}/{quote(request.match_info['id'], safe='')}"
        return rank(sockets, await ask_all(sockets, path))


def _respond(page: WorkerPage) -> web.Response:
    return web.Response(status=page.status, body=page.body, headers=page.headers)


def _respond_unknown(ranking: Ranking) -> web.Response:
    if ranking.has_silent or not ranking.others:
        return _respond_busy()
    return web.json_response({"error": "no such conversation since the start of this gateway"}, status=404)


def _respond_busy() -> web.Response:
    """Nothing is said about what a worker may know that does not answer."""
    headers = {"Retry-After": "1"}
    return web.json_response({"error": "not all workers answer; try again"}, status=503, headers=headers)
