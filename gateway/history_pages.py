"""What the admin port answers about a conversation's past: its compaction log, and the originals of what was
summarised or pruned. The one place where somebody's words are shown.

Who may ask is the server's part.
"""

import re
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway.admin_pages import Page, render_time, say_unknown
from gateway.conversations.registry import Roster
from gateway.reporting.compaction_log import Chronicle, Entry
from gateway.reporting.originals import Archive, Taken

_CONVERSATION: Final = re.compile(r"[0-9a-f]{1,64}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# Messages; a page of 1 MB.
_MOST_LISTED: Final = 10_000
# Words of a conversation: for who asked, and for nobody's disk.
_PRIVATE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class HistoryPages:
    def __init__(self, roster: Roster, chronicle: Chronicle, archive: Archive) -> None:
        self._roster = roster
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
        if log is None and self._roster.read(identity) is None:
            return say_unknown()
        entries = reversed(log.entries) if log is not None else ()
        return web.json_response({"id": identity, "log": [_describe_entry(entry) for entry in entries]})

    async def _list_originals(self, request: web.BaseRequest) -> web.Response:
        identity = request.path.split("/")[3]
        listing = await self._archive.list(identity, _MOST_LISTED)
        if not listing.lists and self._roster.read(identity) is None:
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


def _describe_taken(taken: Taken) -> dict[str, Any]:
    return {
        "when": render_time(taken.created_seconds),
        "kind": taken.kind,
        "bytes": sum(original.size_bytes for original in taken.originals),
        "messages": [
            {"position": original.position, "bytes": original.size_bytes, "digest": original.digest}
            for original in taken.originals
        ],
    }
