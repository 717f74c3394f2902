"""What the store has of a conversation: its compaction log, and the messages that are not sent any more.

Also of one that an earlier process or another one has served.
"""

from aiohttp import web

from gateway.activity.book import ActivityBook
from gateway.activity.rows import render_second
from gateway.admin.answers import LoggedCompaction, LogPage, OriginalList, OriginalRow, Removal
from gateway.admin.operations import OriginalsQuery
from gateway.admin.problems import AdminRefusal
from gateway.admin.routing import PRIVATE, read_query
from gateway.admin.texts import TextAccess, log_view
from gateway.core.compaction.request import find_reason
from gateway.originals.archive import OriginalsArchive
from gateway.originals.removed import RemovedMessages
from gateway.reporting.compaction_log import CompactionLogWriter, LogEntry
from gateway.store.keys import make_tag


class HistoryPages:
    def __init__(
        self, book: ActivityBook, log: CompactionLogWriter, originals: OriginalsArchive, texts: TextAccess
    ) -> None:
        self._book = book
        self._log = log
        self._originals = originals
        self._texts = texts

    async def list_log(self, request: web.Request) -> LogPage:
        identity = request.match_info["id"]
        tag = await self._find_tag(identity)
        log = await self._log.load(tag, identity) if tag is not None else ()
        if not log and self._book.find(identity) is None:
            raise unknown_conversation()
        return LogPage(id=identity, log=[_describe_entry(entry) for entry in reversed(log)])

    async def list_originals(self, request: web.Request) -> OriginalList:
        identity, query = request.match_info["id"], read_query(request, OriginalsQuery)
        tag = await self._find_tag(identity)
        listing = await self._originals.load_lists(tag or "", identity, query.limit, query.cursor)
        if not listing.lists and self._book.find(identity) is None:
            raise unknown_conversation()
        taken = [_describe_removed(removed) for removed in listing.lists]
        left_off = listing.left_off
        return OriginalList(
            id=identity, taken=taken, left_off=left_off, next=listing.last if left_off else None
        )

    async def show_original(self, request: web.Request) -> web.Response:
        identity, digest = request.match_info["id"], request.match_info["digest"]
        conversation = self._book.find(identity)
        self._texts.check(conversation)
        tag = await self._find_tag(identity)
        raw = await self._originals.load(tag or "", identity, digest)
        if raw is None:
            raise AdminRefusal(404, "no such original of this conversation is kept")
        log_view(request, identity, "original")
        return web.Response(body=raw, content_type="application/json", headers=PRIVATE)

    async def _find_tag(self, identity: str) -> str | None:
        """Of the owner."""
        known = self._book.find(identity)
        return make_tag(known.owner) if known is not None else await self._log.find_tag(identity)


def unknown_conversation() -> AdminRefusal:
    return AdminRefusal(404, "no such conversation is known")


def _describe_entry(entry: LogEntry) -> LoggedCompaction:
    return LoggedCompaction(
        when=render_second(entry.at_seconds),
        kind=entry.kind,
        trigger=entry.trigger,
        reason=find_reason(entry.reason),
        outcome=entry.outcome,
        pre_tokens=entry.pre_tokens,
        post_tokens=entry.post_tokens,
        messages=entry.messages,
        summary_tokens=entry.summary_tokens,
        model=entry.model,
        calls=entry.calls,
        seconds=round(entry.seconds, 3),
    )


def _describe_removed(removed: RemovedMessages) -> Removal:
    rows = [
        OriginalRow(position=each.position, bytes=each.size_bytes, digest=each.digest)
        for each in removed.originals
    ]
    return Removal(
        when=render_second(removed.created_seconds),
        kind=removed.kind,
        bytes=sum(row.bytes for row in rows),
        messages=rows,
    )
