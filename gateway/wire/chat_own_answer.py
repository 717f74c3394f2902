"""Chat Completions: an answer of ours. `usage` is optional in this format, so it is left out."""

from typing import Final

import msgspec

from gateway.wire.own_answer import OwnAnswer
from gateway.wire.sse import DEFAULT_NAME, Event, render_event

_DONE: Final = Event(DEFAULT_NAME, b"[DONE]")


def render_own_answer(answer: OwnAnswer) -> bytes:
    if answer.is_streamed:
        return b"".join(map(render_event, _make_events(answer)))
    message = {"role": "assistant", "content": answer.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return msgspec.json.encode(_make_head(answer, "chat.completion") | {"choices": [choice]})


def _make_events(answer: OwnAnswer) -> list[Event]:
    head = _make_head(answer, "chat.completion.chunk")
    steps: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        ({"content": answer.text}, None),
        ({}, "stop"),
    ]
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end} for delta, end in steps]
    chunks = [msgspec.json.encode(head | {"choices": [choice]}) for choice in choices]
    return [*(Event(DEFAULT_NAME, chunk) for chunk in chunks), _DONE]


def _make_head(answer: OwnAnswer, kind: str) -> dict[str, object]:
    head = {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created_seconds}
    return head | {"model": answer.model}
