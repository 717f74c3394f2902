"""Searching what is not sent any more: pieces of the originals of a conversation, the best first."""

from typing import Final

from aiohttp import web

from gateway.activity.record import ConversationActivity
from gateway.activity.rows import render_second
from gateway.admin.answers import FoundPart, SearchPage
from gateway.admin.history_pages import unknown_conversation
from gateway.admin.operations import SearchQuery
from gateway.admin.problems import AdminRefusal
from gateway.admin.routing import read_query
from gateway.admin.text_sources import TextSources
from gateway.admin.texts import log_view
from gateway.originals.search import FoundPiece, OriginalsSearch, Scope, SearchFailed
from gateway.reporting.metrics import Metrics
from gateway.store.keys import make_tag

# Of all pieces of an answer together: a person reads on, unlike a model with its window.
_MOST_TOKENS: Final = 20_000


class SearchPages:
    def __init__(self, sources: TextSources, search: OriginalsSearch, metrics: Metrics) -> None:
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
