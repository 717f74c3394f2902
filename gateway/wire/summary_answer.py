"""The text of a chat answer, for the calls that we make ourselves.

Reads chat completions, streamed or not. Reasoning is not text. Whether a text will do as a summary is
for `core` to say.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.core.usage import Usage
from gateway.wire.answer import is_complete
from gateway.wire.answer_events import AnswerEvents
from gateway.wire.answer_facts import AnswerFacts, Document, choices_of
from gateway.wire.sse import Event

# Far more than the summary cap of any policy; a model that runs away must not fill the memory.
MAX_TEXT_CHARACTERS = 1_000_000
_TEXT_PARTS = (None, "text", "output_text")


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
    def __init__(self, content_type: str, content_encoding: str) -> None:
        self._events = AnswerEvents(content_type, content_encoding)
        self._facts = AnswerFacts()
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

    def _note(self, events: list[Event]) -> None:
        for event in events:
            for document in self._facts.note_documents(event):
                self._take(document)

    def _take(self, document: Document) -> None:
        for choice in choices_of(document):
            delta, message = choice.get("delta"), choice.get("message")
            self._has_tool_calls = self._has_tool_calls or _has_tool_calls(delta) or _has_tool_calls(message)
            if choice.get("index", 0) != 0:
                continue
            if isinstance(delta, dict):
                self._add(delta.get("content"))
            elif isinstance(message, dict) and not self._texts:
                # Some servers repeat the whole message behind its deltas.
                self._add(message.get("content"))

    def _add(self, content: object) -> None:
        for text in _texts_of(content):
            if text and self._room > 0:
                self._texts.append(text[: self._room])
            self._room -= len(text)


def _texts_of(content: object) -> Iterator[str]:
    """Of a string, or of a list of parts."""
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            yield part["text"]


def _has_tool_calls(message: object) -> bool:
    return isinstance(message, dict) and bool(message.get("tool_calls") or message.get("function_call"))
