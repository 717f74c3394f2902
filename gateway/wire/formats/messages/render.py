"""Anthropic Messages: everything that the gateway writes itself.

A summary, a shortened message, the request for a summary, a response without an upstream, and errors.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.core.errors import RequestRefused
from gateway.core.history.pivot import Mark
from gateway.core.history.transcript import cut_middle
from gateway.wire.body import parse_raw_fields
from gateway.wire.errors import describe_failure, parse_error
from gateway.wire.raw_json import encode_json
from gateway.wire.sse import SseEvent, render_event
from gateway.wire.wire_format import LocalResponse, SummaryRequest

# Takes the place of an empty text: "text content blocks must be non-empty" (an error of this API).
_NOTHING: Final = "(nothing)"
# Clients decide by the error's type what to do. These are the types that they know.
_ERROR_TYPES: Final = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}

# The codes of the API itself. By this one the SDKs decide to send their whole history.
_API_CODES: Final = frozenset({"thread_not_found"})

RawFields = dict[str, msgspec.Raw]
_Fields = dict[str, object]


def write_turns(turns: Iterable[tuple[str, str]]) -> bytes:
    """Messages by role and text, as JSON separated by commas.

    The API refuses trailing whitespace in the last assistant message; it is removed from all of them.
    """
    messages = ({"role": role, "content": text.rstrip() or _NOTHING} for role, text in turns)
    return b",".join(map(encode_json, messages))


def render_marked(raw: bytes, mark: Mark, placeholder: str) -> bytes:
    """A message with its tool results cleared or shortened. The content stays a string or a list of parts.

    Clearing also removes attachments. If the message has no results, its own texts are shortened. Everything
    else is kept. If nothing changes, the bytes stay the same.
    """
    message = parse_raw_fields(raw)
    content = message.get("content", msgspec.Raw(b"null"))
    shortened = _shorten_message(content, mark, placeholder)
    if shortened is content:
        return raw
    return msgspec.json.encode(message | {"content": shortened})


def _shorten_message(content: msgspec.Raw, mark: Mark, placeholder: str) -> msgspec.Raw:
    """Returns the same object if nothing changes."""
    blocks = _read_blocks(content)
    if not any(map(_is_result, blocks)):
        # There may be a result of an unknown type. It is not cleared: its call needs it.
        return content if mark.keep_chars is None else _shorten_content(content, mark, placeholder)
    shortened = [
        _shorten_result(block, mark, placeholder) if _is_result(block) else block for block in blocks
    ]
    if all(new is old for new, old in zip(shortened, blocks, strict=True)):
        return content
    return msgspec.Raw(msgspec.json.encode(shortened))


def _read_blocks(content: msgspec.Raw) -> list[RawFields]:
    """Empty for a string, and for a list with anything but objects."""
    try:
        return msgspec.json.decode(content, type=list[RawFields])
    except msgspec.ValidationError:
        return []


def _is_result(block: RawFields) -> bool:
    return "type" in block and bytes(block["type"]) == b'"tool_result"'


def _shorten_result(block: RawFields, mark: Mark, placeholder: str) -> RawFields:
    content = block.get("content")
    if content is None:
        return block
    shortened = _shorten_content(content, mark, placeholder)
    return block if shortened is content else block | {"content": shortened}


def _shorten_content(content: msgspec.Raw, mark: Mark, placeholder: str) -> msgspec.Raw:
    old = msgspec.json.decode(content)
    new = _clear(old, placeholder) if mark.keep_chars is None else _cut(old, mark.keep_chars)
    return content if new == old else msgspec.Raw(msgspec.json.encode(new))


def _clear(content: object, placeholder: str) -> object:
    """A text not longer than the placeholder stays: clearing it saves nothing."""
    match content:
        case str() if len(content) > len(placeholder):
            return placeholder
        case [{"type": "text", "text": str(text)}] if len(text) <= len(placeholder):
            return content
        case [_, *_]:
            return [{"type": "text", "text": placeholder}] if placeholder.strip() else []
    return content


def _cut(content: object, keep_chars: int) -> object:
    if isinstance(content, str):
        return cut_middle(content, keep_chars)
    if not isinstance(content, list):
        return content
    return [_cut_block(block, keep_chars) for block in content]


def _cut_block(block: object, keep_chars: int) -> object:
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return {**block, "text": cut_middle(block["text"], keep_chars)}
    return block


def render_summary_request(request: SummaryRequest) -> bytes:
    texts = [text for text in (*request.identity_blocks, request.system) if text.strip()]
    system = {"system": [{"type": "text", "text": text} for text in texts]} if texts else {}
    return msgspec.json.encode(
        {
            "model": request.model,
            **system,
            "messages": [{"role": "user", "content": "\n\n".join(request.parts)}],
            request.output_key: request.cap,
            "stream": True,
        }
    )


def render_local_response(response: LocalResponse) -> bytes:
    """A message with one text. Usage is required in this format, so it says 0."""
    ending = _Fields(stop_reason="end_turn", stop_sequence=None)
    if not response.is_streamed:
        content = [_Fields(type="text", text=response.text)]
        return msgspec.json.encode(_make_message(response) | {"content": content} | ending)
    events = [
        _Fields(type="message_start", message=_make_message(response)),
        _Fields(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        _Fields(type="content_block_delta", index=0, delta={"type": "text_delta", "text": response.text}),
        _Fields(type="content_block_stop", index=0),
        _Fields(type="message_delta", delta=ending, usage={"output_tokens": 0}),
        _Fields(type="message_stop"),
    ]
    return b"".join(
        render_event(SseEvent(str(event["type"]), msgspec.json.encode(event))) for event in events
    )


def _make_message(response: LocalResponse) -> _Fields:
    """The message before its first block."""
    head = _Fields(
        id=f"msg_{response.id}", type="message", role="assistant", model=response.model, content=[]
    )
    head |= {"stop_reason": None, "stop_sequence": None}
    return head | {"usage": {"input_tokens": 0, "output_tokens": 0}}


def render_error(error: RequestRefused) -> bytes:
    detail: _Fields = {"type": _ERROR_TYPES.get(error.status, error.kind), "message": str(error)}
    if error.code in _API_CODES:
        detail["details"] = {"error_code": error.code}
    return msgspec.json.encode({"type": "error", "error": detail})


def render_stream_error(upstream_body: bytes, status: int) -> bytes:
    """An upstream's error as an `error` event of a stream: its own error object if it has one."""
    found = parse_error(upstream_body)
    if found is None:
        kind = _ERROR_TYPES.get(status, "api_error")
        found = {"error": {"type": kind, "message": describe_failure(status)}}
    return b"event: error\ndata: " + msgspec.json.encode({"type": "error"} | found) + b"\n\n"
