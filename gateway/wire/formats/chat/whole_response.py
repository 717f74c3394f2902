"""One response of Chat Completions that is not streamed: calls of the gateway's tool are cut out of it."""

from typing import Final

from gateway.core.errors import Unreadable
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.chat.assistant_draft import AssistantDraft
from gateway.wire.formats.chat.call_tracker import CallTracker
from gateway.wire.formats.chat.recall_request import make_request, may_follow
from gateway.wire.raw_json import decode_object, find_place, join_array, split_array
from gateway.wire.recall import RecallRequest

# A larger one passes as it comes.
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
_MESSAGE: Final = ("choices", 0, "message")
_CALL_REASONS: Final = frozenset({"tool_calls", "function_call", "tool_use"})


class WholeResponse:
    def __init__(self) -> None:
        self._body = bytearray()
        self._draft = AssistantDraft()
        self._tracker = CallTracker()
        self._finish_reason: str | None = None
        self.is_passing = False

    def feed(self, piece: bytes) -> bytes:
        """Nothing is shown before the end, unless it is too large."""
        self._body += piece
        if not self.is_passing and len(self._body) <= MAX_BODY_BYTES:
            return b""
        self.is_passing = True
        passed = bytes(self._body)
        self._body.clear()
        return passed

    def end(self) -> RecallRequest | None:
        if self.is_passing:
            return None
        try:
            salt = self._read()
        except Unreadable:
            return None
        self._tracker.close()
        self._tracker.place()
        if not may_follow(self._finish_reason, is_done=True):
            return None
        return make_request(self._tracker, self._draft, salt)

    def release(self) -> bytes:
        body = bytes(self._body)
        if not self._tracker.list_own():
            return body
        try:
            return apply_edits(body, self._make_edits(body))
        except Unreadable:
            # Its keys are repeated.
            return body

    def leave(self) -> bytes:
        """Nothing of it was shown, and nothing is."""
        self._tracker = CallTracker()
        self._draft = AssistantDraft()
        return b""

    @property
    def text(self) -> str:
        return self._draft.text

    @property
    def call_ids(self) -> list[str]:
        """Of the client's calls."""
        return [call.id for call in self._tracker.calls if call.owner == "client"]

    def _read(self) -> str:
        """The id of the response."""
        document = decode_object(bytes(self._body))
        match document.get("choices"):
            case [{"message": dict(message), **choice}]:
                calls, reason = message.get("tool_calls"), choice.get("finish_reason")
                self._draft.add(message)
                for call in calls if isinstance(calls, list) else ():
                    self._tracker.add_whole(call)
                self._finish_reason = reason if isinstance(reason, str) and reason else None
        return str(document.get("id") or "")

    def _make_edits(self, body: bytes) -> list[Edit]:
        place = find_place(body, *_MESSAGE, "tool_calls")
        raws = split_array(body[place.start : place.end])
        pairs = zip(raws, self._tracker.calls, strict=True)
        kept = [raw for raw, call in pairs if call.owner != "gateway"]
        if kept:
            return [Edit(place.start, place.end, join_array(kept))]
        # An empty array is refused by some servers if a client sends it back.
        edits = [Edit(place.start, place.end, b"null")]
        if self._finish_reason in _CALL_REASONS:
            reason = find_place(body, "choices", 0, "finish_reason")
            edits.append(Edit(reason.start, reason.end, b'"stop"'))
        return edits
