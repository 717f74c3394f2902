"""One response of Chat Completions that is not streamed: calls of the gateway's tool are cut out of it."""

from typing import Final

from gateway.core.errors import Unreadable
from gateway.wire.edits import Edit, apply_edits
from gateway.wire.formats.chat.assistant_draft import AssistantDraft
from gateway.wire.formats.chat.call_tracker import CallTracker
from gateway.wire.formats.chat.recall_request import make_request, may_follow
from gateway.wire.raw_json import decode_object, find_place, join_array, split_array
from gateway.wire.recall import RecallRequest
from gateway.wire.response.held_body import HeldBody

_MESSAGE: Final = ("choices", 0, "message")
_CALL_REASONS: Final = frozenset({"tool_calls", "function_call", "tool_use"})


class WholeResponse:
    def __init__(self) -> None:
        self._held = HeldBody()
        self._draft = AssistantDraft()
        self._tracker = CallTracker()
        self._finish_reason: str | None = None

    @property
    def is_passing(self) -> bool:
        return self._held.is_passing

    def feed(self, piece: bytes) -> bytes:
        """Nothing is shown before the end, unless it is too large."""
        return self._held.feed(piece)

    def end(self) -> RecallRequest | None:
        body = self._held.end()
        if body is None:
            return None
        try:
            salt = self._read(body)
        except Unreadable:
            return None
        self._tracker.close()
        self._tracker.place()
        if not may_follow(self._finish_reason, is_done=True):
            return None
        return make_request(self._tracker, self._draft, salt)

    def release(self) -> bytes:
        body = self._held.data
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

    def _read(self, body: bytes) -> str:
        """The id of the response."""
        document = decode_object(body)
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
