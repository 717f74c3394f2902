"""The operations of the admin API, asked of all workers or of the one that knows most.

A turn may go to any worker, so several of them may know one conversation. The one that answered its newest
turn knows most. What lies in the store (the log and the originals) any worker can tell, also of a
conversation that it never saw. A worker that does not answer within a second is left out.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import hdrs, web

from gateway.activity.rows import Row
from gateway.admin.answers import ConversationList, TotalsPage
from gateway.admin.conversation_list import find_place, make_cursor, make_totals
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.worker_client import WorkerAnswer, WorkerPage, ask, ask_all
from gateway.admin.operations import (
    MOST_ROWS,
    OPERATIONS,
    PREFIXES,
    ListQuery,
    Operation,
    Reach,
)
from gateway.admin.routing import PEER_HEADER, AdminRefusal, Answer, Handlers, read_query

_LIST: Final = PREFIXES[0] + "/conversations"
_SHOW: Final = "showConversation"
# For a page that is read from the store, or work that is begun, at a worker that has just answered.
_LONG_SECONDS: Final = 15.0
# A large store is written anew.
_LONGEST_SECONDS: Final = 600.0

_Forward = Callable[[Operation, web.Request], Awaitable[Answer]]


class _Known(msgspec.Struct, frozen=True):
    """What counts of the page of a conversation. All workers write UTC in one form, so texts compare as times
    do.
    """

    last_seen: str = ""
    body_in_memory: bool = False


@dataclass(frozen=True)
class _Ranking:
    """knowing: pages of the workers that know the conversation, newest first; others: workers that do not.

    has_silent: a worker did not answer, and may know it.
    """

    knowing: Sequence[tuple[Path, WorkerPage, _Known]]
    others: Sequence[Path]
    has_silent: bool

    @property
    def sockets(self) -> list[Path]:
        """Every worker that answers, the best first."""
        return [*(socket for socket, _, _ in self.knowing), *self.others]


def _rank(sockets: Sequence[Path], answers: Sequence[WorkerAnswer]) -> _Ranking:
    """answers: of each worker, to the question for the conversation's own page."""
    pages = [
        (socket, answer)
        for socket, answer in zip(sockets, answers, strict=True)
        if isinstance(answer, WorkerPage)
    ]
    knowing = [(socket, page, page.parse(_Known) or _Known()) for socket, page in pages if page.status == 200]
    return _Ranking(
        knowing=sorted(knowing, key=lambda each: each[2].last_seen, reverse=True),
        others=[socket for socket, page in pages if page.status != 200],
        has_silent="silent" in answers,
    )


def merge_rows(rows: Iterable[Row]) -> list[Row]:
    """Each conversation once, as the worker shows it that saw it last; the newest first."""
    newest: dict[str, Row] = {}
    for row in rows:
        known = newest.get(row.id)
        if known is None or find_place(row) > find_place(known):
            newest[row.id] = row
    return sorted(newest.values(), key=find_place, reverse=True)


def _merge_pages(pages: Sequence[ConversationList], limit: int) -> ConversationList:
    """The same page of the list of all workers. pages: of each worker, with as many rows at most.

    Where a worker has more rows than it shows, nothing older than the last of them is shown.
    """
    rows = merge_rows(row for page in pages for row in page.conversations)
    ends = [find_place(page.conversations[-1]) for page in pages if page.next and page.conversations]
    shown = [row for row in rows if not ends or find_place(row) >= max(ends)][:limit]
    has_more = bool(shown) and (bool(ends) or len(shown) < len(rows))
    return ConversationList(conversations=shown, next=make_cursor(shown[-1]) if has_more else None)


class MergedConversations:
    def __init__(self, workers: LiveWorkers) -> None:
        self._workers = workers
        self._forwards: dict[Reach, _Forward] = {
            "list": self._list,
            "totals": self._sum,
            "newest": self._ask_knowing,
            "stored": self._ask_until_found,
            "body": self._ask_knowing,
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
        return _merge_pages([_read_list(page) for page in pages], query.limit)

    async def _sum(self, _: Operation, request: web.Request) -> TotalsPage:
        if not self._workers.sockets:
            raise _busy()
        rows = [row for socket in self._workers.sockets for row in await _read_all(socket)]
        return make_totals(merge_rows(rows))

    async def _ask_knowing(self, operation: Operation, request: web.Request) -> Answer:
        """The worker that saw the newest request, or that has the newest body. If it ends at that moment, the
        next one has the next newest.
        """
        ranking = await self._rank(request)
        if not ranking.knowing:
            raise _unknown(ranking)
        if operation.name == _SHOW:
            return _respond(ranking.knowing[0][1])
        # The one with the newest body can compact now.
        asks_body = operation.reach == "body"
        ranked = sorted(ranking.knowing, key=lambda each: asks_body and not each[2].body_in_memory)
        sockets = [socket for socket, _, _ in ranked]
        # It may still do what it was asked for; another one must not do it, too.
        stops = request.method != "GET"
        answer = await _ask_in_turn(sockets, request, passes=(404,), stops=stops)
        if answer is None or answer.status == 404:
            raise _busy()
        return _respond(answer)

    async def _ask_until_found(self, operation: Operation, request: web.Request) -> Answer:
        """What the best of them says, if no worker finds it. One that does not know the conversation does not
        know its policy, either.
        """
        ranking = await self._rank(request)
        seconds = _LONGEST_SECONDS if operation.method == "DELETE" else _LONG_SECONDS
        answer = await _ask_in_turn(ranking.sockets, request, passes=(403, 404), seconds=seconds)
        if answer is None or (answer.status in (403, 404) and ranking.has_silent):
            raise _busy()
        return _respond(answer)

    async def _ask_any(self, _: Operation, request: web.Request) -> Answer:
        """One worker, which tells the others by the store."""
        answer = await _ask_in_turn(self._workers.sockets, request, seconds=_LONGEST_SECONDS)
        if answer is None:
            raise _busy()
        return _respond(answer)

    async def _rank(self, request: web.Request) -> _Ranking:
        sockets = self._workers.sockets
        path = f"{_LIST}/{quote(request.match_info['id'], safe='')}"
        return _rank(sockets, await ask_all(sockets, path))


async def _ask_in_turn(
    sockets: Iterable[Path],
    request: web.Request,
    *,
    passes: Collection[int] = (),
    seconds: float = _LONG_SECONDS,
    stops: bool = False,
) -> WorkerPage | None:
    """The first answer that has none of the statuses `passes`, or else the first one with such a status; None
    without any. stops: whether no other one is asked after a worker that is silent.
    """
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise AdminRefusal(400, "body: too large") from error
    headers = {PEER_HEADER: request.remote or "", hdrs.ACCEPT: request.headers.get(hdrs.ACCEPT, "*/*")}
    passed: WorkerPage | None = None
    for socket in sockets:
        answer = await ask(
            socket, request.path_qs, method=request.method, body=body, seconds=seconds, headers=headers
        )
        if isinstance(answer, WorkerPage):
            if answer.status not in passes:
                return answer
            passed = passed or answer
        elif answer == "silent" and stops:
            break
    return passed


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
    return page.parse(ConversationList) or ConversationList(conversations=[])


def _respond(page: WorkerPage) -> web.Response:
    return web.Response(status=page.status, body=page.body, headers=page.headers)


def _unknown(ranking: _Ranking) -> AdminRefusal:
    if ranking.has_silent or not ranking.others:
        return _busy()
    return AdminRefusal(404, "no such conversation is known")


def _busy() -> AdminRefusal:
    """Nothing is said about what a worker may know that does not answer."""
    return AdminRefusal(503, "not all workers answer; try again", {"Retry-After": "1"})
