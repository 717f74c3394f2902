"""Responses: everything that the gateway writes itself.

A summary, a shortened item, the request for a summary, a response without an upstream, and stream errors.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from gateway.core.history.pivot import Mark
from gateway.core.history.transcript import cut_middle
from gateway.wire.body import parse_raw_fields
from gateway.wire.errors import make_error, parse_error
from gateway.wire.formats.responses.items import find_answered, kind_of, parse_items
from gateway.wire.raw_json import encode_json
from gateway.wire.riding import THINKING_ALLOWANCE_TOKENS
from gateway.wire.sse import SseEvent, render_event
from gateway.wire.wire_format import LocalResponse, SummaryRequest

_PART_TYPES: Final = {"user": "input_text", "assistant": "output_text"}
# A screenshot can only be replaced by a screenshot: this one is 32 by 32 grey pixels.
BLANK_SCREENSHOT: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAAAAABWESUoAAAAFklEQVR42mNoIAAYRhWMKhhVMFIVAABC"
    "AAAfN5c2AAAAAABJRU5ErkJggg=="
)
_NOTHING_USED: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
# The position of the only message in the output.
_AT: Final = {"output_index": 0}
# The least specific error code of this API.
_UNKNOWN_ERROR: Final = "server_error"

_Fields = dict[str, object]


def write_turns(turns: Iterable[tuple[str, str]]) -> bytes:
    """Messages by role and text, as JSON separated by commas.

    They have no ids, so they are valid whether the upstream stores responses or not.
    """
    items = [
        {"type": "message", "role": role, "content": [{"type": _PART_TYPES[role], "text": text}]}
        for role, text in turns
    ]
    return b",".join(map(encode_json, items))


def render_marked(raw: bytes, mark: Mark, placeholder: str) -> bytes:
    """An item with its text cleared or shortened. The value stays a string, list of parts, shell output or
    screenshot.

    Clearing also removes attachments. All other fields are kept. If nothing changes, the bytes stay the same.
    """
    items = parse_items(raw)
    item = items[0]
    key = "content" if kind_of(item) == "message" else "output"
    if len(items) > 1 or item.get("role") == "assistant":
        return raw
    if raw.startswith(b'"'):
        text = _shorten(item["content"], mark, placeholder)
        return msgspec.json.encode(text) if text != item["content"] else raw
    shortened = _shorten(item.get(key), mark, placeholder)
    if item.get("tools") and find_answered(item) is not None and mark.keep_chars is None:
        # The result of a tool search: the search can be repeated, and there is no field for a placeholder.
        key, shortened = "tools", []
    if shortened == item.get(key):
        return raw
    fields = parse_raw_fields(raw)
    fields[key] = msgspec.Raw(msgspec.json.encode(shortened))
    return msgspec.json.encode(fields)


def _shorten(content: object, mark: Mark, placeholder: str) -> object:
    if isinstance(content, str):
        return placeholder if mark.keep_chars is None else cut_middle(content, mark.keep_chars)
    if isinstance(content, list):
        return (
            _clear_list(content, placeholder)
            if mark.keep_chars is None
            else _cut_list(content, mark.keep_chars)
        )
    if isinstance(content, dict) and content.get("type") == "computer_screenshot" and mark.keep_chars is None:
        return {"type": "computer_screenshot", "image_url": BLANK_SCREENSHOT}
    return content


def _clear_list(parts: list[Any], placeholder: str) -> list[object]:
    """One part with the placeholder; for a shell, one for each command."""
    if all(isinstance(part, dict) and "stdout" in part for part in parts):
        return [{**part, "stdout": placeholder, "stderr": ""} for part in parts]
    return [{"type": "input_text", "text": placeholder}]


def _cut_list(parts: list[Any], keep_chars: int) -> list[object]:
    return [_cut_part(part, keep_chars) for part in parts]


def _cut_part(part: object, keep_chars: int) -> object:
    if not isinstance(part, dict):
        return part
    texts = {key: part[key] for key in ("text", "stdout", "stderr") if isinstance(part.get(key), str)}
    return {**part, **{key: cut_middle(text, keep_chars) for key, text in texts.items()}}


def render_summary_request(request: SummaryRequest) -> bytes:
    # Only half of the remaining room, because the size of the prompt is an estimate.
    allowance = max(0, min(THINKING_ALLOWANCE_TOKENS, (request.room - request.cap) // 2))
    instructions = {"instructions": request.system} if request.system.strip() else {}
    content = [{"type": "input_text", "text": "\n\n".join(request.parts)}]
    return msgspec.json.encode(
        {
            "model": request.model,
            **instructions,
            "input": [{"type": "message", "role": "user", "content": content}],
            request.output_key: request.cap + allowance,
            "store": False,
            "stream": True,
        }
    )


def render_local_response(response: LocalResponse) -> bytes:
    """A response with one message."""
    message = _make_message(response, "completed", [_make_part(response.text)])
    final = _make_response(response, "completed", [message]) | {"usage": _NOTHING_USED}
    if not response.is_streamed:
        return msgspec.json.encode(final)
    begun = _make_response(response, "in_progress", [])
    events = [
        _Fields(type="response.created", response=begun),
        _Fields(type="response.in_progress", response=begun),
        *_make_item_events(response, message),
        _Fields(type="response.completed", response=final),
    ]
    return b"".join(_render_numbered(number, event) for number, event in enumerate(events))


def _make_item_events(response: LocalResponse, message: _Fields) -> list[_Fields]:
    text, part = response.text, _make_part(response.text)
    place = _Fields(item_id=message["id"], content_index=0) | _AT
    started = _make_message(response, "in_progress", [])
    return [
        _Fields(type="response.output_item.added", item=started) | _AT,
        _Fields(type="response.content_part.added", part=_make_part("")) | place,
        _Fields(type="response.output_text.delta", delta=text, logprobs=[]) | place,
        _Fields(type="response.output_text.done", text=text, logprobs=[]) | place,
        _Fields(type="response.content_part.done", part=part) | place,
        _Fields(type="response.output_item.done", item=message) | _AT,
    ]


def _make_response(response: LocalResponse, status: str, output: list[_Fields]) -> _Fields:
    """With every field that the API's own clients require. It is stored nowhere."""
    head = _Fields(id=f"resp_{response.id}", object="response", created_at=response.created_seconds)
    head |= {"status": status, "error": None, "incomplete_details": None, "instructions": None}
    head |= {"metadata": {}, "model": response.model, "output": output, "parallel_tool_calls": True}
    head |= {"previous_response_id": None, "store": False, "temperature": None, "tool_choice": "auto"}
    return head | {"tools": [], "top_p": None, "truncation": "disabled", "usage": None}


def _make_message(response: LocalResponse, status: str, content: list[_Fields]) -> _Fields:
    head = _Fields(id=f"msg_{response.id}", type="message", status=status)
    return head | {"role": "assistant", "content": content}


def _make_part(text: str) -> _Fields:
    return _Fields(type="output_text", text=text, annotations=[], logprobs=[])


def _render_numbered(number: int, event: _Fields) -> bytes:
    return render_event(
        SseEvent(str(event["type"]), msgspec.json.encode(event | _Fields(sequence_number=number)))
    )


def render_stream_error(upstream_body: bytes, status: int) -> bytes:
    """As `response.failed`, which Codex and the AI SDK read. OpenAI's libraries raise for its `error`."""
    error = (parse_error(upstream_body) or make_error(status))["error"]
    detail = error if isinstance(error, dict) else {}
    codes = [code for key in ("code", "type") if isinstance(code := detail.get(key), str) and code]
    shown = {"code": codes[0] if codes else _UNKNOWN_ERROR, "message": str(detail.get("message") or "")}
    response = {"object": "response", "status": "failed", "output": [], "error": shown}
    event = {"type": "response.failed", "sequence_number": 0, "response": response, "error": detail}
    return b"event: response.failed\ndata: " + msgspec.json.encode(event) + b"\n\n"
