"""What a response says: usage, why it ended, errors, and the text of the reply.

One reader for all formats, because servers mix their shapes: OpenAI's Chat Completions and its variants,
Responses, Anthropic's Messages, llama.cpp (docs/design.md, Usage). Knows nothing of transport.

What may be large, or of any type, stays raw until somebody looks at it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from gateway.core.sizing.usage import Usage
from gateway.wire.sse import SseEvent
from gateway.wire.usage import find_timings, find_usage, merge_usage

JsonObject = Mapping[str, object]

# JSON takes up to thirty times its bytes as Python objects. Of what is larger only smaller fields are parsed,
# and of its choices only one.
LARGE_BYTES: Final = 1 << 20
_CHUNK: Final = "chat.completion.chunk"
# The types of events that carry text. Chat Completions names only an object.
_DELTA_TYPES: Final = (
    None,
    "content_block_delta",
    "response.function_call_arguments.delta",
    "response.output_text.delta",
    "response.reasoning_summary_text.delta",
)
_TERMINAL_STATUS: Final = frozenset({"completed", "incomplete", "failed", "cancelled"})
_TERMINAL_TYPES: Final = tuple(f"response.{status}" for status in sorted(_TERMINAL_STATUS))
_WINDOW_EXCEEDED: Final = frozenset(
    {"model_context_window_exceeded", "context_window_exceeded", "context_length_exceeded"}
)
# A delta or message with only these fields has no content.
_EMPTY_KEYS: Final = frozenset({"role", "name", "id", "object", "type", "provider_specific_fields"})
_EMPTY_TYPES: Final = frozenset(
    {
        *("message_start", "ping", "keepalive", "keep-alive", "heartbeat"),
        *("response.created", "response.queued", "response.in_progress"),
    }
)
# These have content, an end, or neither; they are never of an unknown kind.
_BLOCK_TYPES: Final = ("content_block_start", "content_block_delta", "content_block_stop", "message_delta")
_BLOCK_VALUES: Final = ("text", "thinking", "partial_json", "data", "signature", "citation")
_TEXT_PARTS: Final = (None, "text", "output_text")
_ABSENT: Final = Raw()
_NULL: Final = Raw(b"null")
_FIRST: Final = Raw(b"0")
# Numbers that msgspec refuses. They say nothing, and what stands beside them shall not be lost.
_ODD_NUMBER: Final = re.compile(
    rb"(?<=[:,\[\s])-?(?:\d{20,}|\d[\d.]{0,40}[eE]\+?\d{3,}|NaN|Infinity)(?=[\s,\]}])"
)


class Choice(msgspec.Struct, gc=False):
    """One of `choices`, in a stream or in a whole body."""

    index: Raw = _FIRST
    delta: Raw = _ABSENT
    message: Raw = _ABSENT
    text: Raw = _ABSENT
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    usage: Raw = _ABSENT
    error: Raw = _ABSENT


class ResponseFields(msgspec.Struct, gc=False):
    """Of the Responses API, whole or in an event."""

    id: Raw = _ABSENT
    model: Raw = _ABSENT
    usage: Raw = _ABSENT
    error: Raw = _ABSENT
    status: str | None = None
    incomplete_details: Raw = _ABSENT
    output: Raw = _ABSENT


class ResponseDocument(ResponseFields, gc=False):
    """The fields of any JSON object of a response, of any format. None: absent, null, or of a wrong type."""

    type: str | None = None
    object: str | None = None
    choices: Sequence[Choice] | None = None
    timings: Raw = _ABSENT
    x_groq: Raw = _ABSENT
    response: ResponseFields | None = None
    message: Raw = _ABSENT
    stop_reason: str | None = None
    delta: Raw = _ABSENT
    content: Raw = _ABSENT
    content_block: Raw = _ABSENT
    item: Raw = _ABSENT
    index: Raw = _ABSENT
    text: Raw = _ABSENT


class _LargeResponse(ResponseDocument, gc=False):
    """Requests for several choices do not have large responses; more of them are not looked at."""

    choices: tuple[Choice] | None = None


AnyFields = TypeVar("AnyFields", Choice, ResponseFields, ResponseDocument, _LargeResponse)
_KINDS: Final = (Choice, ResponseFields, ResponseDocument, _LargeResponse)
_decode = msgspec.json.Decoder().decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_document = msgspec.json.Decoder(ResponseDocument).decode
_decode_large = msgspec.json.Decoder(_LargeResponse).decode
# Of each kind the same fields, of any type; and what reads each of them.
_LOOSE: Final = {
    kind: msgspec.json.Decoder(
        msgspec.defstruct(kind.__name__, [(name, Raw, _ABSENT) for name in kind.__struct_fields__])
    )
    for kind in _KINDS
}
_FIELDS: Final = {
    kind: {field.name: msgspec.json.Decoder(field.type) for field in msgspec.structs.fields(kind)}
    for kind in _KINDS
}


class Piece(NamedTuple):
    """What a document adds to the model's reply. Reasoning is not text."""

    text: str = ""
    # The text is all of the reply, not the next piece of it. It may repeat pieces that came before.
    is_whole: bool = False
    has_calls: bool = False


# Is called with each event of a response, and its JSON objects.
OnEvent = Callable[[SseEvent, list[ResponseDocument]], None]


def read_document(data: bytes | Raw) -> ResponseDocument | None:
    """None for what is no JSON object. What is of a wrong type loses no other field.

    Raises ValueError for what is no JSON, and RecursionError for what is nested too deeply.
    """
    try:
        return _decode_document(data) if len(data) <= LARGE_BYTES else _decode_large(data)
    except msgspec.ValidationError:
        return _read_loosely(ResponseDocument if len(data) <= LARGE_BYTES else _LargeResponse, data)


def read_documents(data: bytes) -> list[ResponseDocument] | None:
    """The object, or those of a list. None for what is no JSON."""
    try:
        return _read_documents(data)
    except (ValueError, RecursionError):
        pass
    try:
        return _read_documents(_ODD_NUMBER.sub(b"null", data)) if len(data) <= LARGE_BYTES else None
    except (ValueError, RecursionError):
        return None


def _read_documents(data: bytes) -> list[ResponseDocument]:
    document = read_document(data)
    if document is not None:
        return [document]
    is_list = len(data) <= LARGE_BYTES and data.lstrip().startswith(b"[")
    found = map(read_document, _decode_list(data)) if is_list else ()
    return [document for document in found if document is not None]


def read_event(event: SseEvent) -> list[ResponseDocument]:
    """Also of a server that sends no blank lines, so that its events arrive as the lines of one."""
    documents = read_documents(event.data)
    if documents is None:
        return [document for line in event.data.split(b"\n") for document in read_documents(line) or ()]
    return documents


def _read_loosely(kind: type[AnyFields], data: bytes | Raw) -> AnyFields | None:
    """The fields that are of their types. None for what is no object."""
    try:
        loose = _LOOSE[kind].decode(data)
    except msgspec.ValidationError:
        return None
    found = kind()
    for name, decoder in _FIELDS[kind].items():
        if value := getattr(loose, name):
            setattr(found, name, _read_field(name, decoder, value))
    return found


def _read_field(name: str, decoder: msgspec.json.Decoder[object], value: Raw) -> object:
    with suppress(msgspec.ValidationError):
        return decoder.decode(value)
    if name == "response":
        return _read_loosely(ResponseFields, value)
    if name == "choices" and len(value) <= LARGE_BYTES:
        with suppress(msgspec.ValidationError):
            found = [_read_loosely(Choice, each) for each in _decode_list(value)]
            return [choice for choice in found if choice is not None]
    return None


def read_value(raw: bytes | Raw) -> object:
    """A value of any type. None also for what is absent, too large, or no JSON."""
    if not 0 < len(raw) <= LARGE_BYTES:
        return None
    try:
        return _decode(raw)
    except (ValueError, RecursionError):
        pass
    try:
        return _decode(_ODD_NUMBER.sub(b"null", b" " + bytes(raw) + b" "))
    except (ValueError, RecursionError):
        return None


def _read_object(raw: Raw) -> JsonObject:
    """Empty for what is no object."""
    value = read_value(raw)
    return value if isinstance(value, dict) else {}


def _list_objects(raw: Raw) -> list[JsonObject]:
    value = read_value(raw)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _is_given(raw: Raw) -> bool:
    """Whether it is anything but empty. What is long is not empty."""
    return len(raw) > 8 or bool(raw and read_value(raw))


class ResponseFacts:
    """Grows with each event that is noted; the last usage and the last finish reason count."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.has_error = False
        # The stream itself said so: a finish reason, [DONE], message_stop or a terminal status.
        self.has_ended = False
        self.has_document = False
        self._usage: Usage | None = None
        self._timings: Usage | None = None
        self._message_usage: JsonObject = {}

    @property
    def usage(self) -> Usage | None:
        return self._usage or self._timings

    def note(self, event: SseEvent) -> list[ResponseDocument]:
        """Notes one event and returns its JSON objects. An event without a name is a whole body.

        Data that is not JSON is ignored.
        """
        self.has_error = self.has_error or event.name == "error"
        documents = read_documents(event.data)
        if documents is None and event.name:
            self.has_ended = self.has_ended or b"[DONE]" in map(bytes.strip, event.data.split(b"\n"))
            documents = read_event(event)
        for document in documents or ():
            self.has_document = True
            if not is_text_delta(document):
                self._note(document)
        return documents or []

    def _note(self, document: ResponseDocument) -> None:
        self.has_error = self.has_error or has_error(document)
        self.finish_reason = find_finish_reason(document) or self.finish_reason
        self.has_ended = self.has_ended or bool(self.finish_reason) or document.type == "message_stop"
        self._usage = self._find_usage(document) or self._usage
        if document.timings:
            self._timings = find_timings(_read_object(document.timings)) or self._timings

    def _find_usage(self, document: ResponseDocument) -> Usage | None:
        if document.type in ("message_start", "message_delta"):
            is_start = document.type == "message_start"
            holder = read_nested(document.message) if is_start else document
            half = read_value(holder.usage)
            if isinstance(half, dict):
                self._message_usage = half if is_start else merge_usage(self._message_usage, half)
                return find_usage(self._message_usage)
        usages = [document.usage, *(choice.usage for choice in document.choices or ())]
        usages += [read_nested(document.x_groq).usage, (document.response or ResponseFields()).usage]
        for usage in usages:
            if usage and (found := find_usage(_read_object(usage))) is not None:
                return found
        return None


def read_nested(raw: Raw) -> ResponseDocument:
    """An object inside of another one. Without fields if it is none."""
    with suppress(ValueError, RecursionError):
        return (read_document(raw) if raw else None) or ResponseDocument()
    return ResponseDocument()


def is_text_delta(document: ResponseDocument) -> bool:
    """Only a piece of the reply: certainly no usage, no end and no error. True for nearly every event of a
    stream, which then costs a third of a full look.
    """
    if document.type not in _DELTA_TYPES or document.object not in (None, _CHUNK):
        return False
    if document.response is not None or document.stop_reason is not None:
        return False
    for raw in (document.usage, document.error, document.timings, document.x_groq):
        if raw and raw != _NULL:
            return False
    for choice in document.choices or ():
        if choice.finish_reason or choice.usage or choice.error:
            return False
    return True


def find_finish_reason(document: ResponseDocument) -> str | None:
    for choice in document.choices or ():
        if choice.finish_reason:
            return choice.finish_reason
    if document.type == "message_delta" and (nested := read_nested(document.delta)).stop_reason is not None:
        return nested.stop_reason or None
    if document.stop_reason is not None:
        return document.stop_reason or None
    response = document if document.object == "response" else document.response
    return _find_end(response) if response is not None else None


def list_finish_reasons(document: ResponseDocument) -> list[str]:
    """Why the reply ended: the reason of the API, and that of the provider behind a router."""
    native = [choice.native_finish_reason for choice in document.choices or ()]
    return [reason for reason in (find_finish_reason(document), *native) if reason]


def is_window_exceeded(finish_reason: str | None) -> bool:
    """Whether the reply ended because the window was full, which some upstreams report instead of an
    error.
    """
    return finish_reason is not None and finish_reason.lower() in _WINDOW_EXCEEDED


def _find_end(response: ResponseFields) -> str | None:
    """The reason why a response is incomplete says more than its status."""
    if response.status not in _TERMINAL_STATUS:
        return None
    reason = _read_object(response.incomplete_details).get("reason")
    return reason if isinstance(reason, str) and reason else response.status


def has_error(document: ResponseDocument) -> bool:
    if document.type == "error" or document.object == "error" or _is_given(document.error):
        return True
    if document.response is not None and _is_given(document.response.error):
        return True
    return any(_is_given(choice.error) for choice in document.choices or ())


def has_content(document: ResponseDocument) -> bool:
    """Whether the model has begun its reply: text, reasoning, a call, its refusal, or whatever a client may
    show. Ignores errors.
    """
    if any(_has_choice_content(choice) for choice in document.choices or ()):
        return True
    match document.type:
        case "content_block_start":
            return _has_block_content(_read_object(document.content_block))
        case "content_block_delta":
            return _has_block_value(_read_object(document.delta))
        case "message" if document.content:
            return any(map(_has_block_content, _list_objects(document.content)))
    if document.object == "response" and document.output:
        return _is_given(document.output)
    # Responses has events for each item and delta. One of these means that the reply has begun.
    kind = document.type or ""
    return kind.startswith("response.") and kind not in _EMPTY_TYPES and kind not in _TERMINAL_TYPES


def is_known_empty(document: ResponseDocument) -> bool:
    """Whether it is of a known kind without content: the start of a stream, a keep-alive, or usage."""
    if document.type in _EMPTY_TYPES:
        return True
    is_known = document.choices is not None or document.type in _BLOCK_TYPES
    return is_known and not has_content(document) and find_finish_reason(document) is None


def _has_choice_content(choice: Choice) -> bool:
    parts = (_read_object(choice.delta), _read_object(choice.message))
    return _is_given(choice.text) or any(
        bool(value) and key not in _EMPTY_KEYS for part in parts for key, value in part.items()
    )


def _has_block_content(block: JsonObject) -> bool:
    """Of a block of Anthropic Messages. Texts begin empty; a tool call is content from its beginning."""
    return bool(block) and (block.get("type") not in ("text", "thinking") or _has_block_value(block))


def _has_block_value(block: JsonObject) -> bool:
    return any(block.get(key) for key in _BLOCK_VALUES)


def read_piece(document: ResponseDocument) -> Piece:
    """What one document adds to the reply, in any format."""
    if document.choices:
        return _read_choices(document.choices)
    match document.type:
        case "content_block_delta":
            delta = _read_object(document.delta)
            return Piece(_text_of(delta.get("text")) if delta.get("type") == "text_delta" else "")
        case "content_block_start":
            return _read_blocks([_read_object(document.content_block)], is_whole=False)
        case "message" if document.content:
            return _read_blocks(_list_objects(document.content), is_whole=True)
        case "response.output_text.delta":
            return Piece(_text_of(read_value(document.delta)))
        case "response.output_text.done" if document.text:
            return Piece(_text_of(read_value(document.text)), is_whole=True)
        case "response.output_item.added" | "response.output_item.done" if document.item:
            return _read_items([_read_object(document.item)])
    response = document if document.object == "response" else document.response
    output = response.output if response is not None else _ABSENT
    return _read_items(_list_objects(output)) if output else Piece()


def _read_choices(choices: Sequence[Choice]) -> Piece:
    """The text of the first choice, and whether any choice has tool calls."""
    texts: list[str] = []
    is_whole = has_calls = False
    for choice in choices:
        delta, message = read_value(choice.delta), read_value(choice.message)
        parts = [part for part in (delta, message) if isinstance(part, dict)]
        has_calls = has_calls or any(part.get("tool_calls") or part.get("function_call") for part in parts)
        if parts and read_value(choice.index) == 0:
            is_whole = is_whole or not isinstance(delta, dict)
            texts.extend(_iter_texts(parts[0].get("content")))
    return Piece("".join(texts), is_whole, has_calls)


def _iter_texts(content: object) -> Iterator[str]:
    """The texts of a string or of a list of parts."""
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") in _TEXT_PARTS:
            yield _text_of(part.get("text"))


def _read_blocks(blocks: list[JsonObject], *, is_whole: bool) -> Piece:
    """Of Anthropic Messages. A call is of the client's tools, or of those that the provider runs."""
    texts = [_text_of(block.get("text")) for block in blocks if block.get("type") == "text"]
    has_calls = any(_text_of(block.get("type")).endswith("tool_use") for block in blocks)
    return Piece("".join(texts), is_whole, has_calls)


def _read_items(items: list[JsonObject]) -> Piece:
    """Of Responses: the texts of the messages. Items of any type that ends in `_call` are tool calls."""
    kinds = [_text_of(item.get("type")) or ("message" if "role" in item else "") for item in items]
    texts = [
        _text_of(part.get("text"))
        for item, kind in zip(items, kinds, strict=True)
        if kind == "message" and isinstance(content := item.get("content"), list)
        for part in content
        if isinstance(part, dict) and part.get("type") == "output_text"
    ]
    return Piece("".join(texts), is_whole=True, has_calls=any(kind.endswith("_call") for kind in kinds))


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def read_text(raw: Raw) -> str:
    """Empty for what is no text."""
    return _text_of(read_value(raw))


def list_nested(raw: Raw) -> list[ResponseDocument]:
    """The objects of a list, none for what is no list."""
    with suppress(ValueError, RecursionError):
        return [read_nested(each) for each in _decode_list(raw)] if raw else []
    return []
