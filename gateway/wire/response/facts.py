"""What the events of a chat answer say about it: usage, finish reason, errors, whether it came to its end.

Reads all shapes that FACTS §4 names: OpenAI chat and its variants, Responses, Anthropic Messages, llama.cpp.
Knows nothing of transport; text and tool calls are for `summary_answer`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from gateway.core.sizing.usage import Usage, find_timings, find_usage, merge_usage
from gateway.wire.sse import SseEvent

_TypeOfDelta = Literal[
    "content_block_delta",
    "response.function_call_arguments.delta",
    "response.output_text.delta",
    "response.reasoning_summary_text.delta",
]
_TERMINAL_STATUS = frozenset({"completed", "incomplete", "failed", "cancelled"})
JsonObject = Mapping[str, object]


class _DullChoice(msgspec.Struct, gc=False):
    finish_reason: None = None
    usage: None = None
    error: None = None


class _DullDocument(msgspec.Struct, gc=False):
    """Nothing here but text: what does not fit this type is worth a look. Four times cheaper than a look."""

    choices: list[_DullChoice] = []
    type: _TypeOfDelta | None = None
    error: None = None
    message: None = None
    object: Literal["chat.completion.chunk"] | None = None
    response: None = None
    timings: None = None
    usage: None = None
    x_groq: None = None


class _PlainChoice(msgspec.Struct, gc=False):
    finish_reason: str
    usage: None = None
    error: None = None


class _PlainUsage(msgspec.Struct, gc=False):
    prompt_tokens: Annotated[int, msgspec.Meta(gt=0)]
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)]
    total_tokens: int


class _PlainAnswer(msgspec.Struct, gc=False):
    """A chat completion with nothing odd about it, which is what a whole body is as a rule."""

    choices: list[_PlainChoice]
    usage: _PlainUsage
    object: Literal["chat.completion"]
    error: None = None
    response: None = None
    timings: None = None
    type: None = None
    x_groq: None = None


class _EndingChoice(msgspec.Struct, gc=False):
    finish_reason: str | None = None
    usage: None = None
    error: None = None


class _EndingChunk(msgspec.Struct, gc=False):
    """The last chunks of a stream, with nothing odd about them: why it ended, and what was counted."""

    choices: list[_EndingChoice]
    object: Literal["chat.completion.chunk"] | None = None
    usage: _PlainUsage | None = None
    error: None = None
    response: None = None
    timings: None = None
    type: None = None
    x_groq: None = None


_decode_ending = msgspec.json.Decoder(_EndingChunk).decode
_decode_plain = msgspec.json.Decoder(_PlainAnswer).decode
_decode_dull = msgspec.json.Decoder(_DullDocument).decode
_decode = msgspec.json.Decoder().decode


class ResponseFacts:
    """Grows with each event that is noted; the last usage and the last finish reason count."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.has_error = False
        # The stream said so itself: a finish reason, [DONE], message_stop, a terminal status.
        self.has_ended = False
        self.has_document = False
        self._usage: Usage | None = None
        self._timings: Usage | None = None
        self._message_usage: JsonObject = {}

    @property
    def usage(self) -> Usage | None:
        return self._usage or self._timings

    def note(self, event: SseEvent) -> None:
        """As `note_documents`, for whom the text does not matter. A nameless event is a whole body."""
        if not self._note_usual(event):
            self.note_documents(event)

    def _note_usual(self, event: SseEvent) -> bool:
        """By types, which say the same at a tenth of the price; False where it is to be looked at."""
        name, data = event
        if name == "error":
            return False
        if name == "":
            return self._note_plain(data)
        if data == b"[DONE]":
            self.has_ended = True
            return True
        return is_dull(data) or self._note_ending(data)

    def _note_plain(self, data: bytes) -> bool:
        """A whole answer; False where it is to be looked at."""
        plain = read_plain_answer(data)
        if plain is None:
            return False
        self.has_document = self.has_ended = True
        self._usage = plain.usage
        self.finish_reason = plain.finish_reason or self.finish_reason
        return True

    def _note_ending(self, data: bytes) -> bool:
        """The end of a stream; False where it is to be looked at."""
        try:
            ending = _decode_ending(data)
        except (ValueError, RecursionError):
            return False
        self.has_document = True
        reason = _find_reason(ending.choices)
        self.finish_reason = reason or self.finish_reason
        self.has_ended = self.has_ended or reason is not None
        if ending.usage is not None:
            self._usage = _read_plain_usage(ending.usage)
        return True

    def note_documents(self, event: SseEvent) -> list[JsonObject]:
        """The JSON objects of the event, once they are noted. What is no JSON is left unread."""
        self.has_error = self.has_error or event.name == "error"
        documents = read_documents(event.data)
        if documents is None and event.name:
            # [DONE]; or a server that puts no blank lines, whose events arrive as the lines of one.
            lines = event.data.split(b"\n")
            self.has_ended = self.has_ended or b"[DONE]" in map(bytes.strip, lines)
            documents = [document for line in lines for document in read_documents(line) or ()]
        for document in documents or ():
            self._note(document)
        return documents or []

    def _note(self, document: JsonObject) -> None:
        self.has_document = True
        self.has_error = self.has_error or has_error(document)
        self.finish_reason = read_finish_reason(document) or self.finish_reason
        self.has_ended = self.has_ended or bool(self.finish_reason) or document.get("type") == "message_stop"
        self._usage = self._read_usage(document) or self._usage
        timings = document.get("timings")
        self._timings = (find_timings(timings) if isinstance(timings, dict) else None) or self._timings

    def _read_usage(self, document: JsonObject) -> Usage | None:
        match document:
            case {"type": "message_start", "message": {"usage": dict(usage)}}:
                self._message_usage = usage
                return find_usage(usage)
            case {"type": "message_delta", "usage": dict(usage)}:
                self._message_usage = merge_usage(self._message_usage, usage)
                return find_usage(self._message_usage)
        readings = map(find_usage, _usage_objects(document))
        return next((usage for usage in readings if usage), None)


class PlainAnswer(msgspec.Struct, frozen=True):
    """What a chat completion with nothing odd about it says."""

    usage: Usage
    finish_reason: str | None


def read_plain_answer(data: bytes) -> PlainAnswer | None:
    """Of a whole body; None where it is to be looked at."""
    try:
        answer = _decode_plain(data)
    except (ValueError, RecursionError):
        return None
    if not answer.choices:
        return None
    return PlainAnswer(_read_plain_usage(answer.usage), _find_reason(answer.choices))


def _find_reason(choices: Sequence[_PlainChoice | _EndingChoice]) -> str | None:
    for choice in choices:
        if choice.finish_reason:
            return choice.finish_reason
    return None


def _read_plain_usage(usage: _PlainUsage) -> Usage:
    output = max(usage.completion_tokens, usage.total_tokens - usage.prompt_tokens)
    return Usage(usage.prompt_tokens, output)


def is_dull(data: bytes) -> bool:
    """Surely neither usage nor the end nor an error. Hot: asked for every event."""
    try:
        _decode_dull(data)
    except (ValueError, RecursionError):
        return False
    return True


def choices_of(document: JsonObject) -> list[JsonObject]:
    choices = document.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _usage_objects(document: JsonObject) -> Iterator[JsonObject]:
    places = [document, *choices_of(document), document.get("x_groq"), document.get("response")]
    for place in places:
        if isinstance(place, dict) and isinstance(usage := place.get("usage"), dict):
            yield usage


def read_finish_reason(document: JsonObject) -> str | None:
    reasons: list[object] = [choice.get("finish_reason") for choice in choices_of(document)]
    match document:
        case {"type": "message_delta", "delta": {"stop_reason": reason}} | {"stop_reason": reason}:
            reasons.append(reason)
        case {"response": dict(response)} | ({"object": "response"} as response):
            reasons.append(_read_status(response))
    return next((reason for reason in reasons if isinstance(reason, str) and reason), None)


def _read_status(response: JsonObject) -> object:
    """Responses: the reason why it is incomplete says more than that it is."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    status = response.get("status")
    return (reason or status) if isinstance(status, str) and status in _TERMINAL_STATUS else None


def has_error(document: JsonObject) -> bool:
    if document.get("type") == "error" or document.get("object") == "error":
        return True
    places = [document, document.get("response"), *choices_of(document)]
    return any(isinstance(place, dict) and bool(place.get("error")) for place in places)


def read_documents(data: bytes) -> list[JsonObject] | None:
    """None where it is no JSON: msgspec also refuses NaN, lone surrogates and what nests too deep."""
    try:
        value = _decode(data)
    except (ValueError, RecursionError):
        return None
    values = value if isinstance(value, list) else [value]
    return [document for document in values if isinstance(document, dict)]
