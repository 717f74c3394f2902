"""The admin API: metrics, events, conversations and their history.

Only `originals/DIGEST` shows the text of a conversation; all other pages show ids, names and numbers.
`admin/server.py` checks who may see them.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from aiohttp import web

from gateway.admin.server import PURGE_PATH
from gateway.compaction.manual import ManualCompaction
from gateway.conversations.registry import ConversationRecord, Registry
from gateway.core.compaction.manual import LONGEST_INSTRUCTIONS_CHARS
from gateway.purge.stored import PurgeCount
from gateway.reporting.compaction_log import CompactionLogWriter, LogEntry
from gateway.reporting.metrics import CONTENT_TYPE, Metrics
from gateway.reporting.originals import OriginalsArchive, RemovedMessages
from gateway.state.pivots import Pivots
from gateway.store import StoreError
from gateway.store.keys import make_tag

_MAX_CONVERSATIONS: Final = 500
# Messages; a page of 1 MB.
_MAX_ORIGINALS: Final = 10_000
_HISTORY: Final = "/api/conversations/{id:[0-9a-f]{1,64}}"
# The text of a conversation is not written to the disk of the client that asks for it.
_PRIVATE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


Precision = Literal["seconds", "milliseconds"]


class EventPage(Protocol):
    """Sends events, as `EventStream` or `WorkerStream`."""

    async def send(self, request: web.BaseRequest) -> web.StreamResponse: ...


class PageSources(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pages find what they show. find_manual: gives what makes the compactions that operators ask
    for, by the settings that hold now.
    """

    metrics: Metrics
    events: EventPage
    registry: Registry
    pivots: Pivots
    find_manual: Callable[[], ManualCompaction]
    compaction_log: CompactionLogWriter
    originals: OriginalsArchive
    # Deletes all of a tenant, by its tag.
    purge: Callable[[str], Awaitable[PurgeCount]]


class _CompactBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    instructions: Annotated[str, msgspec.Meta(max_length=LONGEST_INSTRUCTIONS_CHARS)] | None = None


class _PurgeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tag: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


class AdminPages:
    def __init__(self, sources: PageSources) -> None:
        self._sources = sources
        self._registry = sources.registry

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/metrics", self._show_metrics),
            web.get("/api/events", self._sources.events.send, allow_head=False),
            web.get("/api/conversations", self._list_conversations),
            web.get("/api/conversations/{id}", self._show_conversation),
            web.post("/api/conversations/{id}/compact", self._compact),
            web.post(PURGE_PATH, self._purge),
            web.get(_HISTORY + "/log", self._show_log),
            web.get(_HISTORY + "/originals", self._list_originals),
            web.get(_HISTORY + "/originals/{digest:[0-9a-f]{64}}", self._show_original),
        ]

    async def _show_metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._sources.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _list_conversations(self, request: web.Request) -> web.Response:
        found = self._registry.list(request.query.get("tenant"), _MAX_CONVERSATIONS)
        return web.json_response({"conversations": [self._describe(record) for record in found]})

    async def _show_conversation(self, request: web.Request) -> web.Response:
        record = self._registry.find(request.match_info["id"])
        if record is None:
            return _respond_unknown()
        head = record.head
        turn = self._registry.find_turn(head.conversation)
        known = turn.thresholds if turn is not None else None
        more = {
            "messages": head.length,
            "growth_tokens": int(head.growth_tokens),
            "prune_batches": len(head.batches),
            "body_in_memory": turn is not None,
            "lines": {"window": known.window, "soft": known.soft, "hard": known.hard} if known else None,
        }
        return web.json_response({**self._describe(record), **more})

    async def _compact(self, request: web.Request) -> web.Response:
        """Starts at once if the newest body is in memory, otherwise at the conversation's next request."""
        record = self._registry.find(request.match_info["id"])
        if record is None:
            return _respond_unknown()
        try:
            body = msgspec.json.decode(await request.read() or b"{}", type=_CompactBody)
        except (msgspec.MsgspecError, UnicodeDecodeError, web.HTTPRequestEntityTooLarge):
            return web.json_response({"error": 'the body must be {"instructions": "..."}'}, status=400)
        instructions = (body.instructions or "").strip()
        turn = self._registry.find_turn(record.head.conversation)
        manual = self._sources.find_manual()
        if turn is None:
            manual.schedule(record.head, instructions)
        elif not manual.compact(turn, instructions):
            return web.json_response({"error": "a manual compaction is already in progress"}, status=409)
        begins = "now" if turn is not None else "at the next request"
        return web.json_response({"id": record.head.conversation, "begins": begins}, status=202)

    async def _purge(self, request: web.Request) -> web.Response:
        """Returns once everything is deleted."""
        try:
            body = msgspec.json.decode(await request.read(), type=_PurgeBody)
        except (msgspec.MsgspecError, UnicodeDecodeError, web.HTTPRequestEntityTooLarge):
            return web.json_response({"error": 'the body must be {"tag": "..."}'}, status=400)
        try:
            count = await self._sources.purge(body.tag)
        except StoreError as error:
            return web.json_response({"error": f"not deleted: {error}"}, status=503)
        return web.json_response(msgspec.structs.asdict(count))

    async def _show_log(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        tag = await self._find_tag(identity)
        log = await self._sources.compaction_log.load(tag, identity) if tag is not None else None
        if log is None and self._registry.find(identity) is None:
            return _respond_unknown()
        entries = reversed(log.entries) if log is not None else ()
        return web.json_response({"id": identity, "log": [_describe_entry(entry) for entry in entries]})

    async def _list_originals(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        tag = await self._find_tag(identity)
        listing = await self._sources.originals.load_lists(tag or "", identity, _MAX_ORIGINALS)
        if not listing.lists and self._registry.find(identity) is None:
            return _respond_unknown()
        taken = [_describe_removed(removed) for removed in listing.lists]
        page = msgspec.json.encode({"id": identity, "taken": taken, "left_off": listing.left_off})
        return web.Response(body=page, content_type="application/json")

    async def _show_original(self, request: web.Request) -> web.Response:
        identity = request.match_info["id"]
        tag = await self._find_tag(identity)
        raw = await self._sources.originals.load(tag or "", identity, request.match_info["digest"])
        if raw is None:
            return web.json_response({"error": "no such original of this conversation is kept"}, status=404)
        return web.Response(body=raw, content_type="application/json", headers=_PRIVATE)

    async def _find_tag(self, conversation_id: str) -> str | None:
        """Of the owner, also of a conversation that an earlier process or another one has served."""
        record = self._registry.find(conversation_id)
        if record is not None:
            return make_tag(record.head.owner)
        return await self._sources.compaction_log.find_tag(conversation_id)

    def _describe(self, record: ConversationRecord) -> dict[str, Any]:
        head = record.head
        return {
            "id": head.conversation,
            "parent": head.parent,
            "tenant": record.tenant,
            "session": record.session,
            "purpose": record.purpose,
            "model": record.model,
            "upstream": record.upstream,
            "prompt_tokens": head.prompt_tokens,
            "output_tokens": head.output_tokens,
            "pivot": self._describe_pivot(head.pivot),
            # Several workers may have seen it in one second; the newest of them is asked.
            "last_seen": _render_time(record.seen_seconds, "milliseconds"),
        }

    def _describe_pivot(self, key: str | None) -> dict[str, Any] | None:
        """Without its text."""
        pivot = self._sources.pivots.find(key)
        if pivot is None:
            return None
        return {
            "kind": "digest" if pivot.is_digest else "summary",
            "covers": pivot.covers,
            "saved_tokens": pivot.saved_tokens,
            "created": _render_time(pivot.created_seconds),
        }


def _describe_entry(entry: LogEntry) -> dict[str, Any]:
    return {
        "when": _render_time(entry.at_seconds),
        "kind": entry.kind,
        "trigger": entry.trigger,
        "reason": entry.reason,
        "outcome": entry.outcome,
        "pre_tokens": entry.pre_tokens,
        "post_tokens": entry.post_tokens,
        "messages": entry.messages,
        "summary_tokens": entry.summary_tokens,
        "model": entry.model,
        "calls": entry.calls,
        "seconds": round(entry.seconds, 3),
    }


def _describe_removed(removed: RemovedMessages) -> dict[str, Any]:
    return {
        "when": _render_time(removed.created_seconds),
        "kind": removed.kind,
        "bytes": sum(original.size_bytes for original in removed.originals),
        "messages": [
            {"position": original.position, "bytes": original.size_bytes, "digest": original.digest}
            for original in removed.originals
        ],
    }


def _respond_unknown() -> web.Response:
    return web.json_response({"error": "no such conversation since the start of this process"}, status=404)


def _render_time(seconds: float, precision: Precision = "seconds") -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision)
