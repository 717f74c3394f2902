"""Chat Completions: messages of our own making, a summary and a shortened one."""

from typing import Final

import msgspec

from gateway.core.history.pivot import Mark, Pivot, list_turns
from gateway.core.history.transcript import cut_middle
from gateway.wire.body import decode_fields
from gateway.wire.sse import DEFAULT_NAME, SseEvent, render_event
from gateway.wire.wire_format import THINKING_ALLOWANCE_TOKENS, LocalResponse, SummaryRequest


def render_summary(pivot: Pivot, next_role: str) -> bytes:
    """The messages that stand for everything the pivot covers, as JSON separated by commas."""
    messages = [{"role": role, "content": text} for role, text in list_turns(pivot, next_role)]
    return b",".join(map(msgspec.json.encode, messages))


def render_marked(raw: bytes, mark: Mark, placeholder: str) -> bytes:
    """A message with its text cleared or cut. The container stays what it was: string or list of parts.

    Attachments go when the text is cleared. Every other field is kept; nothing to shorten, no byte changes.
    """
    message = decode_fields(raw)
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


# JOINED: Chat Completions: the request that asks for a summary.


def render_summary_request(request: SummaryRequest) -> bytes:
    allowance = THINKING_ALLOWANCE_TOKENS if request.output_key == "max_completion_tokens" else 0
    # Anthropic back ends refuse an empty text; document 003 has no system prompt.
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


# JOINED: Chat Completions: an answer of ours. `usage` is optional in this format, so it is left out.

_DONE: Final = SseEvent(DEFAULT_NAME, b"[DONE]")


def render_local_response(answer: LocalResponse) -> bytes:
    if answer.is_streamed:
        return b"".join(map(render_event, _make_events(answer)))
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return msgspec.json.encode(_make_head(answer, "chat.completion") | {"choices": [choice]})


def _make_events(answer: LocalResponse) -> list[SseEvent]:
    head = _make_head(answer, "chat.completion.chunk")
    steps: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        ({"content": answer.text}, None),
        ({}, "stop"),
    ]
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end} for delta, end in steps]
    chunks = [msgspec.json.encode(head | {"choices": [choice]}) for choice in choices]
    return [*(SseEvent(DEFAULT_NAME, chunk) for chunk in chunks), _DONE]


def _make_head(answer: LocalResponse, kind: str) -> dict[str, object]:
    head = {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created_seconds}
    return head | {"model": answer.model}
