"""Answers a call of the gateway's tool: searches the originals of the branch, and writes what is found.

A search that fails, or takes long, costs the model an answer and the client nothing.
"""

import asyncio
import logging
from typing import Final

from gateway.conversations.turn import Turn, name_ids
from gateway.core.compaction.plan import Plan
from gateway.originals.search import FoundPiece, OriginalsSearch, Scope, SearchFailed
from gateway.recall.pieces import render_pieces
from gateway.reporting.metrics import Metrics, SearchResult
from gateway.store.keys import make_tag

log = logging.getLogger("gateway.recall")

# A search takes milliseconds. A store that others hold up must not hold up the reply for long.
_SECONDS: Final = 5.0
# Less than this holds no piece that says anything.
_LEAST_TOKENS: Final = 100
_UNREADABLE: Final = "The arguments could not be read. Call it with one text: what to look for."
_FAILED: Final = "The search failed. Go on without it."
_NO_ROOM: Final = "There is no room left for excerpts in this context window. Go on without them."
# Instead of the answer to a further call.
NO_MORE: Final = (
    "You have searched often enough for this answer. Do not search again now: answer with what you have, and "
    "say what you could not find."
)


class RecallSearch:
    def __init__(self, search: OriginalsSearch, metrics: Metrics) -> None:
        self._search = search
        self._metrics = metrics

    async def answer(self, turn: Turn, plan: Plan, query: str | None, max_tokens: int) -> str:
        """What the model reads. query: None if it could not be read."""
        if query is None or not query.strip():
            return _UNREADABLE
        if max_tokens < _LEAST_TOKENS:
            return _NO_ROOM
        task = asyncio.ensure_future(self._find(turn, plan, query, max_tokens))
        try:
            await asyncio.wait((task,), timeout=_SECONDS)
        finally:
            task.cancel()
        if not task.done() or task.cancelled() or task.exception() is not None:
            self._note_failure(turn, task)
            return _FAILED
        pieces = task.result()
        result: SearchResult = "found" if pieces else "nothing"
        self._metrics.count_search("tool", result)
        log.info("searched result=%s conversation=%s", result, turn.conversation_id, extra=name_ids(turn))
        return render_pieces(pieces)

    async def _find(self, turn: Turn, plan: Plan, query: str, max_tokens: int) -> list[FoundPiece]:
        scopes = find_scopes(turn, plan)
        return await self._search.search(make_tag(turn.owner), scopes, query, max_tokens=max_tokens)

    def _note_failure(self, turn: Turn, task: "asyncio.Future[list[FoundPiece]]") -> None:
        """Without the text of an error that may hold the query."""
        self._metrics.count_search("tool", "failed")
        error = task.exception() if task.done() and not task.cancelled() else None
        why = f"no answer in {_SECONDS:g} s"
        if error is not None:
            why = str(error) if isinstance(error, SearchFailed) else type(error).__name__
        log.warning("search of originals failed: %s", why, extra=name_ids(turn))


def find_scopes(turn: Turn, plan: Plan) -> list[Scope]:
    """The conversation's own originals, and those of the one that its pivot was made in.

    Another conversation that began alike may have the same id, so only what the chain of this one holds
    counts, or what its pivot covers: that is proven, also where old messages were dropped or cleared.
    """
    conversation, pivot = turn.received.conversation, plan.pivot
    proven = {(pivot.covers, key) for key in (pivot.key, pivot.origin)} if pivot is not None else set()

    def accepts(position: int, link: str) -> bool:
        return link == conversation.find_link(position + 1) or (position + 1, link) in proven

    scopes = [Scope(turn.conversation_id, accepts=accepts)]
    if pivot is not None and pivot.conversation and pivot.conversation != turn.conversation_id:
        scopes.append(Scope(pivot.conversation, pivot.covers, accepts))
    return scopes
