"""The stream that a client sees of one reply, which may be made of several responses.

Takes calls of the gateway's tool out of chunks, and makes later responses look as if they went on with the
first one. Chunks that need no change keep their bytes.
"""

from typing import Final

from gateway.core.errors import Unreadable
from gateway.wire.formats.chat.call_tracker import TrackedCall
from gateway.wire.formats.chat.chunk import Chunk, split_delta, split_pieces, with_changes
from gateway.wire.raw_json import join_array, split_object, with_fields

# Clients know a reply by these, so that all its chunks have those of the first response.
_HEAD_KEYS: Final = ("id", "created", "model")
# Between the texts of two responses, as a JSON string has it.
_GAP: Final = rb"\n\n"

_Changes = dict[str, bytes | None]


class ShownStream:
    def __init__(self) -> None:
        # Anything that the client sees as content.
        self.has_content = False
        self._is_first = True
        self._has_role = False
        self._head: dict[str, bytes] = {}
        # Of the client, in earlier responses.
        self._calls_before = 0
        # The last character shown, until this response has shown one.
        self._tail_before = ""
        self._tail = ""

    def begin_next(self, calls: int) -> None:
        """Another response follows. calls: of the client, shown of this one."""
        self._is_first = False
        self._calls_before += calls
        self._tail_before = self._tail

    def render(self, chunk: Chunk, reason: bytes | None = None) -> bytes:
        """What the client sees of a chunk whose calls are known; empty if nothing of it is left.

        reason: in place of its finish reason, as JSON.
        """
        try:
            shown = self._edit(chunk, reason)
        except Unreadable:
            # Its keys are repeated.
            is_hidden = any(call.owner == "gateway" for call in chunk.calls)
            shown = b"" if is_hidden else chunk.raw
        if shown:
            self._note(chunk)
        return shown

    def _edit(self, chunk: Chunk, reason: bytes | None) -> bytes:
        delta = self._edit_calls(chunk)
        head: _Changes = {}
        choice: _Changes = {"finish_reason": reason} if reason is not None else {}
        if not self._is_first:
            head.update((key, value) for key, value in self._head.items() if chunk.document.get(key))
            delta |= self._join(chunk)
        if not (delta or head or choice):
            return chunk.raw
        if None in delta.values() and chunk.finish_reason is None and not self._has_more(chunk, delta):
            return b""
        return with_changes(chunk, head, choice, delta)

    def _has_more(self, chunk: Chunk, changes: _Changes) -> bool:
        """Whether its delta holds anything that is not left out."""
        left = {key: value for key, value in chunk.delta.items() if changes.get(key, b"") is not None}
        if self._has_role:
            left.pop("role", None)
        return any(left.values())

    def _edit_calls(self, chunk: Chunk) -> _Changes:
        if not any(call.owner == "gateway" or self._is_renumbered(call) for call in chunk.calls):
            return {}
        pieces = [
            self._renumber(raw, piece, call)
            for raw, piece, call in zip(split_pieces(chunk), chunk.pieces, chunk.calls, strict=True)
            if call.owner != "gateway"
        ]
        return {"tool_calls": join_array(pieces) if pieces else None}

    def _is_renumbered(self, call: TrackedCall) -> bool:
        return call.is_moved or self._calls_before > 0

    def _renumber(self, raw: bytes, piece: object, call: TrackedCall) -> bytes:
        """Servers that number no calls, or each with 0, go on with that where it does not matter."""
        if not self._is_renumbered(call) or not isinstance(piece, dict) or piece.get("index") is None:
            return raw
        return with_fields(raw, {"index": b"%d" % (self._calls_before + call.at)})

    def _join(self, chunk: Chunk) -> _Changes:
        """The role comes once. The text of this response stands in a paragraph of its own."""
        changes: _Changes = {}
        if self._has_role and "role" in chunk.delta:
            changes["role"] = None
        content = chunk.delta.get("content")
        if isinstance(content, str) and content and self._tail_before:
            if not (self._tail_before.isspace() or content[0].isspace()):
                changes["content"] = b'"' + _GAP + split_delta(chunk)["content"][1:]
            self._tail_before = ""
        return changes

    def _note(self, chunk: Chunk) -> None:
        self._has_role = self._has_role or bool(chunk.delta.get("role"))
        self.has_content = self.has_content or chunk.has_content
        for call in chunk.calls:
            if call.owner == "client":
                call.is_shown = self.has_content = True
        content = chunk.delta.get("content")
        if isinstance(content, str) and content:
            self._tail = content[-1]
        if self._is_first:
            self._note_head(chunk)

    def _note_head(self, chunk: Chunk) -> None:
        new = [key for key in _HEAD_KEYS if key not in self._head and chunk.document.get(key)]
        if new:
            try:
                raws = split_object(chunk.data)
            except Unreadable:
                return
            self._head.update((key, raws[key]) for key in new)
