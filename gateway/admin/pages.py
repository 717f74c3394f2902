"""What the admin port answers: metrics, conversations, events. Ids, names and numbers; nobody's words.

Who may ask is the server's part.
"""

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from gateway.admin.event_stream import EventStream
from gateway.compaction.compactor import Compactor
from gateway.conversations.registry import ConversationRecord, Registry
from gateway.core.compaction.command import LONGEST_INSTRUCTIONS_CHARS
from gateway.reporting.compaction_log import CompactionLogWriter, Entry
from gateway.reporting.metrics import CONTENT_TYPE, Metrics
from gateway.reporting.originals import OriginalsArchive, RemovedMessages
from gateway.state.pivots import Pivots

Page = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_MOST_LISTED: Final = 500


class _Wish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    instructions: Annotated[str, msgspec.Meta(max_length=LONGEST_INSTRUCTIONS_CHARS)] | None = None


class AdminPages:
    def __init__(
        self, metrics: Metrics, stream: EventStream, registry: Registry, pivots: Pivots, compactor: Compactor
    ) -> None:
        self._metrics = metrics
        self._stream = stream
        self._registry = registry
        self._pivots = pivots
        self._compactor = compactor

    def find(self, method: str, path: str) -> Page | None:
        """None: there is no such page, or not by this method."""
        reads = method in ("GET", "HEAD")
        match path.split("/")[1:]:
            case ["metrics"] if reads:
                return self._show_metrics
            case ["api", "events"] if method == "GET":
                return self._stream.send
            case ["api", "conversations"] if reads:
                return self._list_conversations
            case ["api", "conversations", _] if reads:
                return self._show_conversation
            case ["api", "conversations", _, "compact"] if method == "POST":
                return self._compact
        return None

    async def _show_metrics(self, _: web.BaseRequest) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _list_conversations(self, request: web.BaseRequest) -> web.Response:
        found = self._registry.list(request.query.get("tenant"), _MOST_LISTED)
        return web.json_response({"conversations": [self._describe(sighting) for sighting in found]})

    async def _show_conversation(self, request: web.BaseRequest) -> web.Response:
        sighting = self._registry.read(request.path.split("/")[3])
        if sighting is None:
            return say_unknown()
        head = sighting.head
        turn = self._registry.read_turn(head.conversation)
        lines = turn.thresholds if turn is not None else None
        more = {
            "messages": head.length,
            "growth_tokens": int(head.growth_tokens),
            "prune_batches": len(head.batches),
            "body_in_memory": turn is not None,
            "lines": {"window": lines.window, "soft": lines.soft, "hard": lines.hard} if lines else None,
        }
        return web.json_response({**self._describe(sighting), **more})

    async def _compact(self, request: web.BaseRequest) -> web.Response:
        """Begins at once where the newest body is at hand."""
        sighting = self._registry.read(request.path.split("/")[3])
        if sighting is None:
            return say_unknown()
        try:
            wish = msgspec.json.decode(await request.read() or b"{}", type=_Wish)
        except (msgspec.MsgspecError, UnicodeDecodeError, web.HTTPRequestEntityTooLarge):
            return web.json_response({"error": 'the body must be {"instructions": "..."}'}, status=400)
        instructions = (wish.instructions or "").strip()
        turn = self._registry.read_turn(sighting.head.conversation)
        if turn is None:
            self._compactor.postpone(sighting.head, instructions)
        elif not self._compactor.compact(turn, instructions):
            return web.json_response({"error": "a compaction by hand is under way"}, status=409)
        begins = "now" if turn is not None else "at the next request"
        return web.json_response({"id": sighting.head.conversation, "begins": begins}, status=202)

    def _describe(self, sighting: ConversationRecord) -> dict[str, Any]:
        head = sighting.head
        return {
            "id": head.conversation,
            "parent": head.parent,
            "tenant": sighting.tenant,
            "session": sighting.session,
            "purpose": sighting.purpose,
            "model": sighting.model,
            "upstream": sighting.upstream,
            "prompt_tokens": head.prompt_tokens,
            "output_tokens": head.output_tokens,
            "pivot": self._describe_pivot(head.pivot),
            "last_seen": render_time(sighting.seen_seconds),
        }

    def _describe_pivot(self, key: str | None) -> dict[str, Any] | None:
        """Without its words."""
        pivot = self._pivots.find(key)
        if pivot is None:
            return None
        return {
            "kind": "digest" if pivot.is_digest else "summary",
            "covers": pivot.covers,
            "saved_tokens": pivot.saved_tokens,
            "created": render_time(pivot.created_seconds),
        }


def say_unknown() -> web.Response:
    return web.json_response({"error": "no such conversation since the start of this process"}, status=404)


def render_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


# JOINED: What the admin port answers about a conversation's past: its compaction log, and the

_CONVERSATION: Final = re.compile(r"[0-9a-f]{1,64}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# Messages; a page of 1 MB.
_MOST_ORIGINALS_LISTED: Final = 10_000
# Words of a conversation: for who asked, and for nobody's disk.
_PRIVATE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class HistoryPages:
    def __init__(self, registry: Registry, chronicle: CompactionLogWriter, archive: OriginalsArchive) -> None:
        self._registry = registry
        self._chronicle = chronicle
        self._archive = archive

    def find(self, method: str, path: str) -> Page | None:
        """None: there is no such page, or not by this method."""
        match path.split("/")[1:]:
            case ["api", "conversations", identity, *rest] if _CONVERSATION.fullmatch(identity):
                return self._find_one(rest) if method in ("GET", "HEAD") else None
        return None

    def _find_one(self, rest: list[str]) -> Page | None:
        match rest:
            case ["log"]:
                return self._show_log
            case ["originals"]:
                return self._list_originals
            case ["originals", digest] if _DIGEST.fullmatch(digest):
                return self._show_original
        return None

    async def _show_log(self, request: web.BaseRequest) -> web.Response:
        identity = request.path.split("/")[3]
        log = await self._chronicle.read(identity)
        if log is None and self._registry.read(identity) is None:
            return say_unknown()
        entries = reversed(log.entries) if log is not None else ()
        return web.json_response({"id": identity, "log": [_describe_entry(entry) for entry in entries]})

    async def _list_originals(self, request: web.BaseRequest) -> web.Response:
        identity = request.path.split("/")[3]
        listing = await self._archive.list(identity, _MOST_ORIGINALS_LISTED)
        if not listing.lists and self._registry.read(identity) is None:
            return say_unknown()
        taken = [_describe_taken(taken) for taken in listing.lists]
        page = msgspec.json.encode({"id": identity, "taken": taken, "left_off": listing.left_off})
        return web.Response(body=page, content_type="application/json")

    async def _show_original(self, request: web.BaseRequest) -> web.Response:
        *_, identity, _, digest = request.path.split("/")
        raw = await self._archive.read(identity, digest)
        if raw is None:
            return web.json_response({"error": "no such original of this conversation is kept"}, status=404)
        return web.Response(body=raw, content_type="application/json", headers=_PRIVATE)


def _describe_entry(entry: Entry) -> dict[str, Any]:
    return {
        "when": render_time(entry.at_seconds),
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


def _describe_taken(taken: RemovedMessages) -> dict[str, Any]:
    return {
        "when": render_time(taken.created_seconds),
        "kind": taken.kind,
        "bytes": sum(original.size_bytes for original in taken.originals),
        "messages": [
            {"position": original.position, "bytes": original.size_bytes, "digest": original.digest}
            for original in taken.originals
        ],
    }
