"""The text of the model's reply, for our own requests: streamed or not, in any wire format.

Reasoning is not text. `core.compaction.summary` decides whether a text is good enough as a summary.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.sizing.usage import Usage
from gateway.wire.response.events import ResponseEvents
from gateway.wire.response.facts import ResponseFacts
from gateway.wire.response.reader import is_complete
from gateway.wire.sse import SseEvent
from gateway.wire.wire_format import JsonObject, ReplyPart

# Far more than any policy allows for a summary. It bounds the memory that a model in a loop can fill.
MAX_TEXT_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class SummaryResponse:
    text: str
    finish_reason: str | None
    has_tool_calls: bool
    # The upstream reported an error, or the text reached the bound and was cut there.
    has_error: bool
    is_complete: bool
    usage: Usage | None


class SummaryReader:
    """find_part: the wire format's `find_reply_part`."""

    def __init__(
        self, find_part: Callable[[JsonObject], ReplyPart], content_type: str, content_encoding: str
    ) -> None:
        self._find_part = find_part
        self._events = ResponseEvents(content_type, content_encoding)
        self._facts = ResponseFacts()
        self._texts: list[str] = []
        self._room = MAX_TEXT_CHARACTERS
        self._has_tool_calls = False

    @property
    def is_over(self) -> bool:
        """The text is longer than any summary: the rest of the response cannot make it usable."""
        return self._room < 0

    @property
    def is_behind(self) -> bool:
        """Many bytes are read in steps: while this is true, call `catch_up` before anything else."""
        return self._events.is_behind

    def feed(self, chunk: bytes) -> None:
        self._note(self._events.feed(chunk))

    def catch_up(self) -> None:
        """Takes one step."""
        self._note(self._events.catch_up())

    def finish(self) -> SummaryResponse:
        """After the last chunk. Never raises."""
        while self.is_behind:
            self.catch_up()
        self._note(self._events.finish())
        return SummaryResponse(
            text="".join(self._texts),
            finish_reason=self._facts.finish_reason,
            has_tool_calls=self._has_tool_calls,
            has_error=self._facts.has_error or self.is_over,
            is_complete=is_complete(self._events, self._facts),
            usage=self._facts.usage,
        )

    def _note(self, events: list[SseEvent]) -> None:
        for event in events:
            for document in self._facts.note(event):
                self._add(self._find_part(document))

    def _add(self, part: ReplyPart) -> None:
        self._has_tool_calls = self._has_tool_calls or part.has_tool_calls
        # Some servers repeat the whole message after its deltas.
        if part.text and not (part.is_whole and self._texts):
            if self._room > 0:
                self._texts.append(part.text[: self._room])
            self._room -= len(part.text)
