"""The operations of the admin API, asked of all workers or of the one that knows most.

What lies in the store (the log and the originals) any worker can tell, also of a conversation that it never
saw. A worker that does not answer within a second is left out.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import hdrs, web

from gateway.activity.rows import Row
from gateway.admin.answers import ConversationList, TotalsPage
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.ranking import Ranking, merge_pages, merge_rows, put_bodies_first, rank
from gateway.admin.merged.worker_client import Silent, WorkerAnswer, WorkerPage, ask, ask_all
from gateway.admin.operations import (
    MOST_ROWS,
    OPERATIONS,
    PREFIXES,
    ListQuery,
    Operation,
    Reach,
    find_operation,
)
from gateway.admin.problems import AdminRefusal
from gateway.admin.routing import Answer, Handlers, read_query
from gateway.admin.texts import PEER_HEADER
from gateway.admin.totals import make_totals

_LIST: Final = PREFIXES[0] + find_operation("listConversations").path
_SHOW: Final = "showConversation"
# For a page that is read from the store, or work that is begun, at a worker that has just answered.
_LONG_SECONDS: Final = 15.0
# A large store is written anew.
_LONGEST_SECONDS: Final = 600.0

_Forward = Callable[[Operation, web.Request], Awaitable[Answer]]


class MergedConversations:
    def __init__(self, workers: LiveWorkers) -> None:
        self._workers = workers
        self._forwards: dict[Reach, _Forward] = {
            "list": self._list,
            "totals": self._sum,
            "newest": self._ask_newest,
            "stored": self._ask_until_found,
            "body": self._ask_for_body,
            "any": self._ask_any,
        }

    def list_handlers(self) -> Handlers:
        """Of the operations that the supervisor does not answer itself."""
        return {
            each.name: partial(self._forwards[each.reach], each)
            for each in OPERATIONS
            if each.reach in self._forwards
        }

    async def _list(self, _: Operation, request: web.Request) -> Answer:
        query = read_query(request, ListQuery)
        answers = await ask_all(self._workers.sockets, request.path_qs)
        pages = [answer for answer in answers if isinstance(answer, WorkerPage)]
        if not pages:
            raise _busy()
        refused = next((page for page in pages if page.status != 200), None)
        if refused is not None:
            return _respond(refused)
        return merge_pages([_read_list(page) for page in pages], query.limit)

    async def _sum(self, _: Operation, request: web.Request) -> TotalsPage:
        if not self._workers.sockets:
            raise _busy()
        rows = [row for socket in self._workers.sockets for row in await _read_all(socket)]
        return make_totals(merge_rows(rows))

    async def _ask_newest(self, operation: Operation, request: web.Request) -> Answer:
        ranking = await self._rank(request)
        if not ranking.knowing:
            raise _unknown(ranking)
        if operation.name == _SHOW:
            return _respond(ranking.knowing[0][1])
        return await _ask_each([socket for socket, _ in ranking.knowing], request)

    async def _ask_until_found(self, operation: Operation, request: web.Request) -> Answer:
        """What the best of them says, if no worker finds it. One that does not know the conversation does not
        know its policy, either.
        """
        ranking = await self._rank(request)
        body = await _read_body(request)
        missing: WorkerPage | None = None
        seconds = _LONGEST_SECONDS if operation.method == "DELETE" else _LONG_SECONDS
        for socket in ranking.sockets:
            answer = await _pass_on(socket, request, body, seconds)
            if not isinstance(answer, WorkerPage):
                continue
            if answer.status not in (403, 404):
                return _respond(answer)
            missing = missing or answer
        if missing is None or ranking.has_silent:
            raise _busy()
        return _respond(missing)

    async def _ask_for_body(self, _: Operation, request: web.Request) -> Answer:
        """The worker with the newest body. If it ends at that moment, the next one has the next newest."""
        ranking = await self._rank(request)
        if not ranking.knowing:
            raise _unknown(ranking)
        return await _ask_each(put_bodies_first(ranking), request)

    async def _ask_any(self, _: Operation, request: web.Request) -> Answer:
        """One worker, which tells the others by the store."""
        body = await _read_body(request)
        for socket in self._workers.sockets:
            answer = await _pass_on(socket, request, body, _LONGEST_SECONDS)
            if isinstance(answer, WorkerPage):
                return _respond(answer)
        raise _busy()

    async def _rank(self, request: web.Request) -> Ranking:
        sockets = self._workers.sockets
        path = f"{_LIST}/{quote(request.match_info['id'], safe='')}"
        return rank(sockets, await ask_all(sockets, path))


async def _ask_each(sockets: Iterable[Path], request: web.Request) -> Answer:
    """The answer of the first that has one."""
    body = await _read_body(request)
    for socket in sockets:
        answer = await _pass_on(socket, request, body)
        if isinstance(answer, WorkerPage) and answer.status != 404:
            return _respond(answer)
        if isinstance(answer, Silent) and request.method != "GET":
            # It may still do what it was asked for; another one must not do it, too.
            break
    raise _busy()


async def _pass_on(
    socket: Path, request: web.Request, body: bytes, seconds: float = _LONG_SECONDS
) -> WorkerAnswer:
    return await ask(
        socket,
        request.path_qs,
        method=request.method,
        body=body,
        seconds=seconds,
        headers={PEER_HEADER: request.remote or "", hdrs.ACCEPT: request.headers.get(hdrs.ACCEPT, "*/*")},
    )


async def _read_body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise AdminRefusal(400, "body: too large") from error


async def _read_all(socket: Path) -> list[Row]:
    """All rows of a worker, as far as it answers."""
    rows, cursor = list[Row](), ""
    while True:
        query = urlencode({"limit": MOST_ROWS, **({"cursor": cursor} if cursor else {})})
        answer = await ask(socket, f"{_LIST}?{query}")
        if not isinstance(answer, WorkerPage) or answer.status != 200:
            return rows
        page = _read_list(answer)
        rows += page.conversations
        if page.next is None:
            return rows
        cursor = page.next


def _read_list(page: WorkerPage) -> ConversationList:
    """Empty for an answer that is no list."""
    try:
        return msgspec.json.decode(page.body, type=ConversationList)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ConversationList(conversations=[])


def _respond(page: WorkerPage) -> web.Response:
    return web.Response(status=page.status, body=page.body, headers=page.headers)


def _unknown(ranking: Ranking) -> AdminRefusal:
    if ranking.has_silent or not ranking.others:
        return _busy()
    return AdminRefusal(404, "no such conversation is known")


def _busy() -> AdminRefusal:
    """Nothing is said about what a worker may know that does not answer."""
    return AdminRefusal(503, "not all workers answer; try again", {"Retry-After": "1"})
