"""The admin API of one process: metrics, events, conversations and their history.

`operations` declares what is asked and answered. `server` checks who may ask.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec
from aiohttp import web

from gateway import __version__
from gateway.activity.book import ActivityBook
from gateway.activity.record import ConversationActivity
from gateway.activity.rows import Row, make_row, render_second, render_time
from gateway.activity.series import RequestPoint
from gateway.admin.answers import (
    CompactionBegun,
    ConversationList,
    ConversationPage,
    FoundPart,
    GatewayPage,
    Lines,
    RequestList,
    RequestRow,
    SearchPage,
    SummaryList,
    TotalsPage,
)
from gateway.admin.array_page import NOT_IN_MEMORY, ArrayPage
from gateway.admin.conversation_list import choose_shown, make_page
from gateway.admin.gateway_page import GatewayFacts
from gateway.admin.history_pages import HistoryPages, unknown_conversation
from gateway.admin.openapi import show_document
from gateway.admin.operations import NDJSON, CompactBody, ListQuery, PurgeBody, SearchQuery
from gateway.admin.problems import AdminRefusal
from gateway.admin.routing import PRIVATE, Handlers, make_routes, read_body, read_query
from gateway.admin.session_pages import SessionPages
from gateway.admin.summary_pages import SummaryPages
from gateway.admin.text_sources import TextSources
from gateway.admin.texts import TextAccess, log_view
from gateway.admin.totals import make_totals
from gateway.compaction.manual import ManualCompaction
from gateway.conversations.branches import Branches
from gateway.core.history.head import Head
from gateway.core.money import render_price
from gateway.originals.archive import OriginalsArchive
from gateway.originals.index import OriginalsIndex
from gateway.originals.search import FoundPiece, Scope, SearchFailed
from gateway.purge import PurgeCount
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.metrics import CONTENT_TYPE, Metrics
from gateway.state.heads import Heads
from gateway.store.interface import StoreError
from gateway.store.keys import make_tag

# Some 3 ms of the event loop.
_ROWS_AT_ONCE: Final = 500
_NOT_SEEN: Final = "The gateway has nothing of this conversation any more. Compact it after its next request."


class EventPage(Protocol):
    """Sends events, as `EventStream` or `WorkerStream`."""

    async def send(self, request: web.BaseRequest) -> web.StreamResponse: ...


class PageSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pages find what they show. find_manual: gives what makes the compactions that operators ask
    for, by the settings that hold now.
    """

    facts: GatewayFacts
    metrics: Metrics
    events: EventPage
    activity: ActivityBook
    branches: Branches
    texts: TextAccess
    find_manual: Callable[[], ManualCompaction]
    compaction_log: CompactionLogWriter
    originals: OriginalsArchive
    search: OriginalsIndex
    # The newest head in the store, by the tag of its owner and the conversation's id. Raises StoreError.
    heads: Heads
    # Deletes all of a tenant, by its tag.
    purge: Callable[[str], Awaitable[PurgeCount]]
    words: TextSources


class AdminPages:
    def __init__(self, sources: PageSources) -> None:
        self._sources = sources
        self._book = sources.activity
        self._branches = sources.branches
        self._history = HistoryPages(
            sources.activity, sources.compaction_log, sources.originals, sources.texts
        )

        self._arrays = ArrayPage(sources.words)
        self._summaries = SummaryPages(sources.words)
        self._search = SearchPages(sources.words, sources.search, sources.metrics)
        self._sessions = SessionPages(sources.words)
        self._export = ExportPage(sources.words, self._list_requests, self._summaries.list_summaries)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/metrics", self._show_metrics), *make_routes(self._list_handlers())]

    def _list_handlers(self) -> Handlers:
        return {
            "showGateway": self._show_gateway,
            "listConversations": self._list_conversations,
            "showTotals": self._show_totals,
            "showConversation": self._show_conversation,
            "listRequests": self._list_requests,
            "compact": self._compact,
            "listLog": self._history.list_log,
            "listOriginals": self._history.list_originals,
            "showOriginal": self._history.show_original,
            "searchOriginals": self._search.search,
            "listMessages": self._arrays.list_messages,
            "showSession": self._sessions.show_session,
            "showDiff": self._sessions.show_diff,
            "listSummaries": self._summaries.list_summaries,
            "editSummary": self._summaries.edit,
            "restoreSummary": self._summaries.restore,
            "deleteConversation": self._summaries.delete,
            "exportConversation": self._export.export,
            "purgeTenant": self._purge,
            "streamEvents": self._sources.events.send,
            "showDocument": show_document,
        }

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._sources.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _show_gateway(self, request: web.Request) -> GatewayPage:
        return self._sources.facts.show(request)

    async def _list_conversations(self, request: web.Request) -> ConversationList:
        query = read_query(request, ListQuery)
        try:
            page = make_page(map(make_row, choose_shown(self._book.list(query.tenant), query)), query)
        except ValueError as error:
            raise AdminRefusal(400, "query: this cursor was not given by this list") from error
        return await self._sessions.add_titles(page)

    async def _show_totals(self, _: web.Request) -> TotalsPage:
        """Some at a time: a full book takes longer than other requests should wait."""
        known, rows = self._book.list(), list[Row]()
        for start in range(0, len(known), _ROWS_AT_ONCE):
            rows += map(make_row, known[start : start + _ROWS_AT_ONCE])
            await asyncio.sleep(0)
        return make_totals(rows)

    async def _show_conversation(self, request: web.Request) -> ConversationPage:
        known = self._find(request)
        newest = self._branches.find_newest(known.id)
        head = newest.head if newest is not None else None
        titles = await self._sessions.load_titles([known])
        row = msgspec.structs.replace(make_row(known), title=titles.get(known.id))
        return ConversationPage(
            **msgspec.structs.asdict(row),
            messages=known.messages,
            growth_tokens=int(head.growth_tokens) if head is not None else 0,
            prune_batches=len(known.batches),
            body_in_memory=newest is not None,
            lines=Lines(window=known.window, soft=known.soft, hard=known.hard) if known.window else None,
            texts=self._sources.texts.describe(known),
        )

    async def _list_requests(self, request: web.Request) -> RequestList:
        known = self._find(request)
        points = known.series.list_points()
        rows = [_describe_point(point) for point in points]
        return RequestList(id=known.id, requests=rows, left_off=known.series.thinned)

    async def _compact(self, request: web.Request) -> CompactionBegun:
        """Starts at once if the newest body is in memory, otherwise at the conversation's next request."""
        head = await self._find_head(request)
        body = await read_body(request, CompactBody)
        instructions = (body.instructions or "").strip()
        newest = self._branches.find_newest(head.conversation)
        manual = self._sources.find_manual()
        if newest is None:
            manual.schedule(head, instructions)
        elif not manual.compact(newest.turn, instructions):
            raise AdminRefusal(409, "a manual compaction is already in progress")
        return CompactionBegun(
            id=head.conversation, begins="now" if newest is not None else "at the next request"
        )

    async def _find_head(self, request: web.Request) -> Head:
        """That of the newest request. Before the first one since the start only the store has it."""
        newest = self._sources.heads.find_latest(request.match_info["id"])
        if newest is not None:
            return newest
        known = self._find(request)
        try:
            head = await self._sources.heads.find_newest(make_tag(known.owner), known.id)
        except StoreError as error:
            raise AdminRefusal(503, f"the store does not answer: {error}") from error
        if head is None:
            raise AdminRefusal(409, _NOT_SEEN)
        return head

    async def _purge(self, request: web.Request) -> PurgeCount:
        """Returns once everything is deleted."""
        body = await read_body(request, PurgeBody)
        try:
            return await self._sources.purge(body.tag)
        except StoreError as error:
            raise AdminRefusal(503, f"not deleted: {error}") from error

    def _find(self, request: web.Request) -> ConversationActivity:
        """Raises AdminRefusal (404)."""
        known = self._book.find(request.match_info["id"])
        if known is None:
            raise unknown_conversation()
        return known


def _describe_point(point: RequestPoint) -> RequestRow:
    return RequestRow(
        at=render_time(point.at_seconds),
        messages=point.messages,
        received=point.received,
        sent=point.sent,
        prompt_tokens=point.prompt_tokens,
        cached_tokens=point.cached_tokens,
        output_tokens=point.output_tokens,
        plan=point.plan,
        soft=point.soft or None,
        hard=point.hard or None,
        change=point.change,
    )


# Of all pieces of an answer together: a person reads on, unlike a model with its window.
_MOST_TOKENS: Final = 20_000


class SearchPages:
    """Searches what is not sent any more: pieces of the originals of a conversation, the best first."""

    def __init__(self, sources: TextSources, search: OriginalsIndex, metrics: Metrics) -> None:
        self._sources = sources
        self._search = search
        self._metrics = metrics

    async def search(self, request: web.Request) -> SearchPage:
        """Also in a conversation that only the store knows. Raises AdminRefusal (400, 403, 404, 503)."""
        identity = request.match_info["id"]
        known = self._sources.activity.find(identity)
        self._sources.texts.check(known)
        tag = make_tag(known.owner) if known is not None else None
        tag = tag or await self._sources.compaction_log.find_tag(identity)
        if tag is None:
            raise unknown_conversation()
        query = read_query(request, SearchQuery)
        scopes = [Scope(identity), *await self._find_inherited(known)]
        try:
            found = await self._search.search(tag, scopes, query.q, most=query.limit, max_tokens=_MOST_TOKENS)
        except SearchFailed as error:
            self._metrics.count_search("admin", "failed")
            raise AdminRefusal(503, f"the originals could not be searched: {error}") from error
        self._metrics.count_search("admin", "found" if found else "nothing")
        if found:
            log_view(request, identity, "search")
        return SearchPage(id=identity, found=[_describe(piece) for piece in found])

    async def _find_inherited(self, known: ConversationActivity | None) -> list[Scope]:
        """A branch uses a summary that was made in another conversation: its messages are kept there."""
        if known is None or known.pivot is None:
            return []
        pivot = await self._sources.pivots.load(known.owner, known.pivot.key)
        if pivot is None or pivot.conversation in ("", known.id):
            return []
        return [Scope(pivot.conversation, before=pivot.covers)]


def _describe(piece: FoundPiece) -> FoundPart:
    return FoundPart(
        conversation=piece.conversation,
        position=piece.position,
        role=piece.role,
        tool=piece.tool,
        path=piece.path,
        start=piece.start,
        end=piece.end,
        when=render_second(piece.time_seconds),
        text=piece.text,
    )


# Raised when a reader of this version would misunderstand the lines.
VERSION: Final = 1
_PIECE_BYTES: Final = 1 << 18
_TYPE: Final = "gateway.export"
# Outside of texts, which have none, a line break in JSON means as much as a space.
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


class ExportPage:
    """One conversation as lines of JSON, for `refold replay`: its newest body, requests and summaries.

    list_requests, list_summaries: answer those operations.
    """

    def __init__(
        self,
        sources: TextSources,
        list_requests: Callable[[web.Request], Awaitable[RequestList]],
        list_summaries: Callable[[web.Request], Awaitable[SummaryList]],
    ) -> None:
        self._sources = sources
        self._list_requests = list_requests
        self._list_summaries = list_summaries

    async def export(self, request: web.Request) -> web.StreamResponse:
        known = self._sources.find(request)
        self._sources.texts.check(known)
        if self._sources.branches.find_newest(known.id) is None:
            raise AdminRefusal(409, NOT_IN_MEMORY)
        requests, summaries = await self._list_requests(request), await self._list_summaries(request)
        # Looked up last: while the rest was loaded, it may have had to make room.
        newest = self._sources.branches.find_newest(known.id)
        if newest is None:
            raise AdminRefusal(409, NOT_IN_MEMORY)
        log_view(request, known.id, "export")
        received, limits = newest.turn.received, newest.turn.limits
        price = self._sources.activity.find_price(newest.turn)
        first = {
            "type": _TYPE,
            "version": VERSION,
            "gateway": __version__,
            "id": known.id,
            "model": known.model,
            "format": received.format.name,
            "limits": {"context": limits.context, "input": limits.input, "output": limits.output},
            "price": render_price(price) if price is not None else None,
        }
        lines: list[Sequence[bytes]] = [
            (msgspec.json.encode(first),),
            (b'{"type":"body","body":', received.body.data, b"}"),
            *((_render("request", row),) for row in requests.requests),
            *((_render("summary", row),) for row in summaries.summaries),
        ]
        response = web.StreamResponse(headers={**PRIVATE, "Content-Type": NDJSON})
        # The client may have gone.
        with suppress(ConnectionError):
            await response.prepare(request)
            for piece in _list_pieces(lines):
                await response.write(piece)
            await response.write_eof()
        return response


def _list_pieces(lines: Sequence[Sequence[bytes]]) -> Iterator[bytes]:
    """A body may have 64 MB: it is never copied as a whole, and no piece takes long."""
    for parts in lines:
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                yield part[start : start + _PIECE_BYTES].translate(_ONE_LINE)
        yield b"\n"


def _render(kind: str, row: msgspec.Struct) -> bytes:
    return msgspec.json.encode({"type": kind, **msgspec.structs.asdict(row)})
