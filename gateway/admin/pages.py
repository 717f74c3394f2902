"""The admin API of one process: metrics, events, conversations and their history.

`operations` declares what is asked and answered. `server` checks who may ask.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

import msgspec
from aiohttp import web

from gateway.activity.book import ActivityBook
from gateway.activity.record import ConversationActivity
from gateway.activity.rows import Row, make_row, render_time
from gateway.activity.series import RequestPoint
from gateway.admin.answers import (
    CompactionBegun,
    ConversationList,
    ConversationPage,
    GatewayPage,
    Lines,
    RequestList,
    RequestRow,
    TotalsPage,
)
from gateway.admin.array_page import ArrayPage
from gateway.admin.conversation_list import choose_shown, make_page
from gateway.admin.export_page import ExportPage
from gateway.admin.gateway_page import GatewayFacts
from gateway.admin.history_pages import HistoryPages, unknown_conversation
from gateway.admin.openapi import show_document
from gateway.admin.operations import CompactBody, ListQuery, PurgeBody
from gateway.admin.problems import AdminRefusal
from gateway.admin.routing import Handlers, make_routes, read_body, read_query
from gateway.admin.search_pages import SearchPages
from gateway.admin.session_pages import SessionPages
from gateway.admin.summary_pages import SummaryPages
from gateway.admin.text_sources import TextSources
from gateway.admin.texts import TextAccess
from gateway.admin.totals import make_totals
from gateway.compaction.manual import ManualCompaction
from gateway.conversations.branches import Branches
from gateway.core.history.head import Head
from gateway.originals.archive import OriginalsArchive
from gateway.originals.search import OriginalsSearch
from gateway.purge import PurgeCount
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.reporting.metrics import CONTENT_TYPE, Metrics
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
    search: OriginalsSearch
    # The newest head in the store, by the tag of its owner and the conversation's id. Raises StoreError.
    find_head: Callable[[str, str], Awaitable[Head | None]]
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
        newest = self._branches.find_head(request.match_info["id"])
        if newest is not None:
            return newest
        known = self._find(request)
        try:
            head = await self._sources.find_head(make_tag(known.owner), known.id)
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
