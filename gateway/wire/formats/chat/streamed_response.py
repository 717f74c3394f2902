"""One streamed response of Chat Completions: which of its chunks the client sees, and what it asks of the
gateway's tool.

A chunk waits only while one of its calls may still become the gateway's, and behind such a chunk. What ends
the response waits, too, because another response may follow.
"""

from collections import deque
from typing import Final

from gateway.wire.formats.chat.assistant_draft import AssistantDraft
from gateway.wire.formats.chat.call_tracker import CallTracker
from gateway.wire.formats.chat.chunk import Chunk, parse_chunk
from gateway.wire.formats.chat.recall_request import make_request, may_follow
from gateway.wire.formats.chat.shown_stream import ShownStream
from gateway.wire.recall import RecallRequest
from gateway.wire.response.held_events import HeldEvents
from gateway.wire.response.raw_events import RawEvent, RawEventSplitter, is_closed

# Of one event. Longer ones pass as they came: to parse them would hold up others.
MAX_CHUNK_BYTES: Final = 4 * 1024 * 1024
# No name of a call takes so much to be complete.
MAX_WAITING_BYTES: Final = 1024 * 1024
_CALL_REASONS: Final = frozenset({"tool_calls", "function_call", "tool_use"})


class StreamedResponse:
    def __init__(self, shown: ShownStream) -> None:
        self._shown = shown
        self._splitter = RawEventSplitter(MAX_CHUNK_BYTES)
        self._draft = AssistantDraft()
        self._tracker = CallTracker()
        # Events that wait for the name of a call, the first one at least.
        self._waiting: deque[Chunk | bytes] = deque()
        self._waiting_bytes = 0
        # From the event on that ends the response.
        self._held = HeldEvents[Chunk | bytes]()
        # The event without a blank line at the end, which may be a part of one.
        self._late = b""
        self._is_late_whole = False
        self._is_ending = self._is_done = self._has_failed = False
        self._finish_reason: str | None = None
        self._id = ""

    def feed(self, piece: bytes) -> bytes:
        return b"".join([self._take(found) for found in self._splitter.feed(piece)])

    def end(self) -> RecallRequest | None:
        rest = self._splitter.finish()
        self._late = b"".join([self._take(found) for found in rest])
        self._is_late_whole = any(parse_chunk(found) for found in rest)
        self._tracker.close()
        self._held.prepend(iter(self._waiting))
        self._waiting.clear()
        self._tracker.place()
        is_cut = self._has_failed or not may_follow(self._finish_reason, is_done=self._is_done)
        return None if is_cut else make_request(self._tracker, self._draft, self._id)

    def release(self) -> bytes:
        is_stopped = bool(self._tracker.list_own()) and not self.call_ids
        return self._late + b"".join([self._render_end(item, is_stopped=is_stopped) for item in self._held])

    def leave(self) -> bytes:
        for call in self._tracker.calls:
            if not call.is_shown:
                # It is not shown any more, whose ever it is.
                call.owner = "gateway"
        late = self._late if self._is_late_whole else b""
        if late and not is_closed(late):
            late += b"\n\n"
        contents = [chunk for chunk in self._held if isinstance(chunk, Chunk) and chunk.has_content]
        shown = late + b"".join([self._shown.render(chunk, b"null") for chunk in contents])
        self._shown.begin_next(len(self.call_ids))
        return shown

    @property
    def text(self) -> str:
        return self._draft.text

    @property
    def call_ids(self) -> list[str]:
        """Of the client's calls."""
        return [call.id for call in self._tracker.calls if call.owner == "client"]

    def _take(self, found: RawEvent) -> bytes:
        chunk = parse_chunk(found)
        if chunk is not None:
            self._note(chunk)
        item = chunk or found.raw
        if self._is_ending:
            return self._hold(item, len(found.raw))
        self._waiting.append(item)
        self._waiting_bytes += len(found.raw)
        if chunk is not None and (chunk.is_done or chunk.finish_reason is not None):
            self._is_ending = True
            self._held.append(self._waiting.pop())
            self._tracker.close()
        if self._waiting_bytes > MAX_WAITING_BYTES or self._has_failed:
            self._tracker.close()
        return self._drain()

    def _hold(self, item: Chunk | bytes, size_bytes: int) -> bytes:
        if self._held.hold(item, size_bytes):
            return b""
        self._has_failed = self._shown.has_content = True
        self._tracker.place()
        shown = self.release()
        self._held.clear()
        return shown

    def _note(self, chunk: Chunk) -> None:
        self._draft.add(chunk.delta)
        chunk.calls = [self._tracker.add(piece) for piece in chunk.pieces]
        self._finish_reason = chunk.finish_reason or self._finish_reason
        self._is_done = self._is_done or chunk.is_done
        self._has_failed = self._has_failed or chunk.has_failed
        self._id = self._id or str(chunk.document.get("id") or "")

    def _drain(self) -> bytes:
        """Up to the first event whose calls are not known."""
        shown: list[bytes] = []
        while self._waiting:
            item = self._waiting[0]
            if isinstance(item, Chunk):
                if any(call.owner == "unknown" for call in item.calls):
                    break
                if item.calls:
                    self._tracker.place()
                item = self._shown.render(item)
            shown.append(item)
            self._waiting.popleft()
        if not self._waiting:
            self._waiting_bytes = 0
        return b"".join(shown)

    def _render_end(self, item: Chunk | bytes, *, is_stopped: bool) -> bytes:
        if isinstance(item, bytes):
            return item
        is_changed = is_stopped and item.finish_reason in _CALL_REASONS
        return self._shown.render(item, b'"stop"' if is_changed else None)
