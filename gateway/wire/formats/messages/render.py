"""Anthropic Messages: messages of our own making, a summary and a shortened one."""

from typing import Final

import msgspec

from gateway.core.errors import RequestRefused
from gateway.core.history.pivot import Mark, Pivot, list_turns
from gateway.core.history.transcript import cut_middle
from gateway.wire.body import decode_fields
from gateway.wire.errors import find_error
from gateway.wire.sse import SseEvent, render_event
from gateway.wire.wire_format import LocalResponse, SummaryRequest

# "text content blocks must be non-empty", and must say something.
_NOTHING: Final = "(nothing)"

RawFields = dict[str, msgspec.Raw]


def render_summary(pivot: Pivot, next_role: str) -> bytes:
    """The messages that stand for everything the pivot covers, as JSON separated by commas.

    "final assistant content cannot end with trailing whitespace": nor does any other here.
    """
    messages = [
        {"role": role, "content": text.rstrip() or _NOTHING} for role, text in list_turns(pivot, next_role)
    ]
    return b",".join(map(msgspec.json.encode, messages))


def render_marked(raw: bytes, mark: Mark, placeholder: str) -> bytes:
    """A message with its tool results cleared or cut, each in the container it came in; one without results
    with its own texts cut.

    Attachments go when a result is cleared. What else a message with results says is kept, like every other
    field; nothing to shorten, no byte changes.
    """
    message = decode_fields(raw)
    content = message.get("content", msgspec.Raw(b"null"))
    shortened = _shorten_message(content, mark, placeholder)
    if shortened is content:
        return raw
    return msgspec.json.encode(message | {"content": shortened})


def _shorten_message(content: msgspec.Raw, mark: Mark, placeholder: str) -> msgspec.Raw:
    """The very object where nothing changes."""
    blocks = _read_blocks(content)
    if not any(map(_is_result, blocks)):
        # A result of a kind that is not known is never cleared: its call would be left without one.
        return content if mark.keep_chars is None else _shorten_content(content, mark, placeholder)
    shortened = [
        _shorten_result(block, mark, placeholder) if _is_result(block) else block for block in blocks
    ]
    if all(new is old for new, old in zip(shortened, blocks, strict=True)):
        return content
    return msgspec.Raw(msgspec.json.encode(shortened))


def _read_blocks(content: msgspec.Raw) -> list[RawFields]:
    """None of a string, and of a list that holds anything but objects."""
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
    """What says no more than the placeholder stays: nothing is won, and an empty text would be refused."""
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


# JOINED: Anthropic Messages: the request that asks for a summary.


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


# JOINED: Anthropic Messages: an answer of ours, as a message of one text. Usage must be there: it says 0.

_Fields = dict[str, object]


def render_local_response(answer: LocalResponse) -> bytes:
    ending = _Fields(stop_reason="end_turn", stop_sequence=None)
    if not answer.is_streamed:
        content = [_Fields(type="text", text=answer.text)]
        return msgspec.json.encode(_make_message(answer) | {"content": content} | ending)
    events = [
        _Fields(type="message_start", message=_make_message(answer)),
        _Fields(type="content_block_start", index=0, content_block={"type": "text", "text": ""}),
        _Fields(type="content_block_delta", index=0, delta={"type": "text_delta", "text": answer.text}),
        _Fields(type="content_block_stop", index=0),
        _Fields(type="message_delta", delta=ending, usage={"output_tokens": 0}),
        _Fields(type="message_stop"),
    ]
    return b"".join(
        render_event(SseEvent(str(event["type"]), msgspec.json.encode(event))) for event in events
    )


def _make_message(answer: LocalResponse) -> _Fields:
    """As it begins: with nothing in it yet."""
    head = _Fields(id=f"msg_{answer.id}", type="message", role="assistant", model=answer.model, content=[])
    head |= {"stop_reason": None, "stop_sequence": None}
    return head | {"usage": {"input_tokens": 0, "output_tokens": 0}}


# JOINED: Errors in the words of Anthropic's API.

# Its clients decide by the type what to do; these are the ones they know.
_KINDS: Final = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def render_error(error: RequestRefused) -> bytes:
    detail = {"type": _KINDS.get(error.status, error.kind), "message": str(error)}
    return msgspec.json.encode({"type": "error", "error": detail})


def render_stream_error(upstream_body: bytes, status: int) -> bytes:
    """A failure after a stream was begun: the upstream's own error object as the event that clients know."""
    found = find_error(upstream_body)
    if found is None:
        message = f"upstream answered {status} after the stream had begun"
        found = {"error": {"type": _KINDS.get(status, "api_error"), "message": message}}
    return b"event: error\ndata: " + msgspec.json.encode({"type": "error"} | found) + b"\n\n"
