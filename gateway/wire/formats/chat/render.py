"""Chat Completions: everything that the gateway writes itself.

A summary, a shortened message, the request for a summary, and a response without an upstream.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gateway.core.history.pivot import Mark
from gateway.core.history.transcript import cut_middle
from gateway.wire.body import parse_raw_fields
from gateway.wire.raw_json import encode_json
from gateway.wire.riding import THINKING_ALLOWANCE_TOKENS
from gateway.wire.sse import DEFAULT_NAME, SseEvent, render_event
from gateway.wire.wire_format import LocalResponse, SummaryRequest

_DONE: Final = SseEvent(DEFAULT_NAME, b"[DONE]")


def write_turns(turns: Iterable[tuple[str, str]]) -> bytes:
    """Messages by role and text, as JSON separated by commas."""
    return b",".join(encode_json({"role": role, "content": text}) for role, text in turns)


def render_marked(raw: bytes, mark: Mark, placeholder: str) -> bytes:
    """A message with its text cleared or shortened. The content stays a string or a list of parts.

    Clearing also removes attachments. All other fields are kept. If nothing changes, the bytes stay the same.
    """
    message = parse_raw_fields(raw)
    content = msgspec.json.decode(message["content"]) if "content" in message else None
    shortened = _shorten_content(content, mark, placeholder)
    if shortened == content:
        return raw
    message["content"] = msgspec.Raw(msgspec.json.encode(shortened))
    return msgspec.json.encode(message)


def _shorten_content(content: object, mark: Mark, placeholder: str) -> object:
    if mark.keep_chars is None:
        return [{"type": "text", "text": placeholder}] if isinstance(content, list) else placeholder
    if isinstance(content, str):
        return cut_middle(content, mark.keep_chars)
    if not isinstance(content, list):
        return content
    return [_shorten_part(part, mark.keep_chars) for part in content]


def _shorten_part(part: object, keep_chars: int) -> object:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": cut_middle(part["text"], keep_chars)}
    return part


def render_summary_request(request: SummaryRequest) -> bytes:
    allowance = THINKING_ALLOWANCE_TOKENS if request.output_key == "max_completion_tokens" else 0
    # Anthropic's models behind this API refuse an empty text, and some prompts have no system part.
    system = [{"role": "system", "content": request.system}] if request.system.strip() else []
    return msgspec.json.encode(
        {
            "model": request.model,
            "messages": [*system, {"role": "user", "content": "\n\n".join(request.parts)}],
            request.output_key: max(request.cap, min(request.cap + allowance, request.room)),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def render_local_response(response: LocalResponse) -> bytes:
    """Usage is optional in this format, so it is left out."""
    if response.is_streamed:
        return b"".join(map(render_event, _make_events(response)))
    message = {"role": "assistant", "content": response.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return msgspec.json.encode(_make_head(response, "chat.completion") | {"choices": [choice]})


def _make_events(response: LocalResponse) -> list[SseEvent]:
    head = _make_head(response, "chat.completion.chunk")
    steps: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        ({"content": response.text}, None),
        ({}, "stop"),
    ]
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end} for delta, end in steps]
    chunks = [msgspec.json.encode(head | {"choices": [choice]}) for choice in choices]
    return [*(SseEvent(DEFAULT_NAME, chunk) for chunk in chunks), _DONE]


def _make_head(response: LocalResponse, kind: str) -> dict[str, object]:
    head = {"id": f"chatcmpl-{response.id}", "object": kind, "created": response.created_seconds}
    return head | {"model": response.model}
