"""The text of an answer, for the calls that we make ourselves: streamed or not, in any wire format.

Reasoning is not text. Whether a text will do as a summary is for `core` to say.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.sizing.usage import Usage
from gateway.wire.response.events import ResponseEvents
from gateway.wire.response.facts import JsonObject, ResponseFacts
from gateway.wire.response.reader import is_complete
from gateway.wire.sse import SseEvent

# Far more than the summary cap of any policy; a model that runs away must not fill the memory.
MAX_TEXT_CHARACTERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Said:
    """What one JSON object of an answer says. is_whole: all of the text once more, or for the first time."""

    text: str
    is_whole: bool
    has_tool_calls: bool


@dataclass(frozen=True, slots=True)
class SummaryAnswer:
    """`has_error`: the upstream said so, or the text passed the bound and was cut there."""

    text: str
    finish_reason: str | None
    has_tool_calls: bool
    has_error: bool
    is_complete: bool
    usage: Usage | None


class SummaryReader:
    """`read_said`: the wire format's reading of one JSON object."""

    def __init__(
        self, read_said: Callable[[JsonObject], Said], content_type: str, content_encoding: str
    ) -> None:
        self._read_said = read_said
        self._events = ResponseEvents(content_type, content_encoding)
        self._facts = ResponseFacts()
        self._texts: list[str] = []
        self._room = MAX_TEXT_CHARACTERS
        self._has_tool_calls = False

    @property
    def is_over(self) -> bool:
        """More text than any summary has: whatever is still to come, it will not do."""
        return self._room < 0

    def feed(self, chunk: bytes) -> None:
        self._note(self._events.feed(chunk))

    def read(self) -> SummaryAnswer:
        """After the last chunk; never raises."""
        self._note(self._events.finish())
        return SummaryAnswer(
            text="".join(self._texts),
            finish_reason=self._facts.finish_reason,
            has_tool_calls=self._has_tool_calls,
            has_error=self._facts.has_error or self._room < 0,
            is_complete=is_complete(self._events, self._facts),
            usage=self._facts.usage,
        )

    def _note(self, events: list[SseEvent]) -> None:
        for event in events:
            for document in self._facts.note_documents(event):
                self._take(document)

    def _take(self, document: JsonObject) -> None:
        said = self._read_said(document)
        self._has_tool_calls = self._has_tool_calls or said.has_tool_calls
        # Some servers repeat the whole message behind its deltas.
        if said.text and not (said.is_whole and self._texts):
            if self._room > 0:
                self._texts.append(said.text[: self._room])
            self._room -= len(said.text)
