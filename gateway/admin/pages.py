"""The admin API of one process: metrics, events, conversations and what was done in them, without any text.

`operations` declares what is asked and answered, `server` checks who may ask, and the other `…_pages` show
and change texts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from aiohttp import web

from gateway.activity.economics import fill
from gateway.activity.rows import Row, make_row, render_second
from gateway.admin import session_pages, summary_pages, text_pages
from gateway.admin.answers import (
    CompactionBegun,
    ConversationList,
    ConversationPage,
    Deletion,
    GatewayPage,
    Lines,
    LoggedCompaction,
    LogPage,
    TotalsPage,
)
from gateway.admin.conversation_list import choose_shown, make_page, make_totals
from gateway.admin.openapi import show_document
from gateway.admin.operations import CompactBody, ListQuery, PurgeBody
from gateway.admin.routing import AdminRefusal, Answer, Handlers, make_routes, read_body, read_query
from gateway.admin.sources import PageSources, show_gateway, unknown_conversation
from gateway.core.compaction.request import find_reason
from gateway.core.history.head import Head
from gateway.purge import PurgeCount
from gateway.reporting.metrics import CONTENT_TYPE
from gateway.store.interface import StoreError
from gateway.store.keys import make_tag

# Some 3 ms of the event loop.
_ROWS_AT_ONCE: Final = 500
_NOT_SEEN: Final = "The gateway has nothing of this conversation any more. Compact it after its next request."


async def _show_gateway(sources: PageSources, request: web.Request) -> GatewayPage:
    return show_gateway(sources.find_serving().settings, sources.find_port(), request)


async def _list_conversations(sources: PageSources, request: web.Request) -> ConversationList:
    query = read_query(request, ListQuery)
    try:
        shown = choose_shown(sources.activity.list(query.tenant), query)
        page = make_page(map(make_row, shown), query.limit)
    except ValueError as error:
        raise AdminRefusal(400, "query: this cursor was not given by this list") from error
    return await session_pages.add_titles(sources, page)


async def _show_totals(sources: PageSources, _: web.Request) -> TotalsPage:
    """Some at a time: a full book takes longer than other requests should wait."""
    known, rows = sources.activity.list(), list[Row]()
    for start in range(0, len(known), _ROWS_AT_ONCE):
        rows += map(make_row, known[start : start + _ROWS_AT_ONCE])
        await asyncio.sleep(0)
    return make_totals(rows)


async def _show_conversation(sources: PageSources, request: web.Request) -> ConversationPage:
    known = sources.find(request)
    newest = sources.branches.find_newest(known.id)
    head = newest.head if newest is not None else None
    titles = await session_pages.load_titles(sources, [known])
    return fill(
        ConversationPage,
        make_row(known),
        title=titles.get(known.id),
        messages=known.messages,
        growth_tokens=int(head.growth_tokens) if head is not None else 0,
        prune_batches=len(known.batches),
        body_in_memory=newest is not None,
        lines=fill(Lines, known) if known.window else None,
        texts=sources.describe_texts(known),
    )


async def _list_log(sources: PageSources, request: web.Request) -> LogPage:
    identity = request.match_info["id"]
    tag = await sources.find_tag(identity)
    log = await sources.compaction_log.load(tag, identity) if tag is not None else ()
    if not log and sources.activity.find(identity) is None:
        raise unknown_conversation()
    entries = [
        fill(
            LoggedCompaction,
            entry,
            when=render_second(entry.at_seconds),
            reason=find_reason(entry.reason),
            seconds=round(entry.seconds, 3),
        )
        for entry in reversed(log)
    ]
    return LogPage(id=identity, log=entries)


async def _compact(sources: PageSources, request: web.Request) -> CompactionBegun:
    """Starts at once if the newest body is in memory, otherwise at the conversation's next request."""
    head = await _find_head(sources, request)
    body = await read_body(request, CompactBody)
    instructions = (body.instructions or "").strip()
    newest, manual = sources.branches.find_newest(head.conversation), sources.find_serving().manual
    if newest is None:
        manual.schedule(head, instructions)
    elif not manual.compact(newest.turn, instructions):
        raise AdminRefusal(409, "a manual compaction is already in progress")
    return CompactionBegun(
        id=head.conversation, begins="now" if newest is not None else "at the next request"
    )


async def _find_head(sources: PageSources, request: web.Request) -> Head:
    """That of the newest request. Before the first one since the start only the store has it."""
    newest = sources.state.heads.find_latest(request.match_info["id"])
    if newest is not None:
        return newest
    known = sources.find(request)
    head = await sources.state.heads.find_newest(make_tag(known.owner), known.id)
    if head is None:
        raise AdminRefusal(409, _NOT_SEEN)
    return head


async def _delete(sources: PageSources, request: web.Request) -> Deletion:
    """Also of one that only the store knows. Returns once everything is deleted."""
    identity = request.match_info["id"]
    tag = await sources.find_tag(identity)
    if tag is None:
        raise unknown_conversation()
    try:
        return Deletion(id=identity, deleted=await sources.purge.run_conversation(tag, identity))
    except StoreError as error:
        raise AdminRefusal(503, f"not deleted: {error}") from error


async def _purge(sources: PageSources, request: web.Request) -> PurgeCount:
    """Returns once everything is deleted."""
    body = await read_body(request, PurgeBody)
    try:
        return await sources.purge.run(body.tag)
    except StoreError as error:
        raise AdminRefusal(503, f"not deleted: {error}") from error


async def _show_metrics(sources: PageSources, _: web.Request) -> web.Response:
    return web.Response(body=sources.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


_HANDLERS: Final[Mapping[str, Callable[[PageSources, web.Request], Awaitable[Answer]]]] = {
    "showGateway": _show_gateway,
    "listConversations": _list_conversations,
    "showTotals": _show_totals,
    "showConversation": _show_conversation,
    "listRequests": text_pages.list_requests,
    "compact": _compact,
    "listLog": _list_log,
    "listOriginals": text_pages.list_originals,
    "showOriginal": text_pages.show_original,
    "searchOriginals": text_pages.search_originals,
    "listMessages": text_pages.list_messages,
    "showSession": session_pages.show_session,
    "showDiff": session_pages.show_diff,
    "listSummaries": summary_pages.list_summaries,
    "editSummary": summary_pages.edit_summary,
    "restoreSummary": summary_pages.restore_summary,
    "deleteConversation": _delete,
    "exportConversation": text_pages.export,
    "purgeTenant": _purge,
}


class AdminPages:
    def __init__(self, sources: PageSources) -> None:
        self._sources = sources

    def routes(self) -> list[web.RouteDef]:
        own: Handlers = {"streamEvents": self._sources.events.send, "showDocument": show_document}
        handlers = {name: partial(handle, self._sources) for name, handle in _HANDLERS.items()}
        metrics = web.get("/metrics", partial(_show_metrics, self._sources))
        return [metrics, *make_routes({**handlers, **own})]
