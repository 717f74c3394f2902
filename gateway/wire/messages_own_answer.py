"""Anthropic Messages: an answer of ours, as a message of one text. Usage must be there: it says 0."""

import msgspec

from gateway.wire.own_answer import OwnAnswer
from gateway.wire.sse import Event, render_event

_Fields = dict[str, object]


def render_own_answer(answer: OwnAnswer) -> bytes:
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
    return b"".join(render_event(Event(str(event["type"]), msgspec.json.encode(event))) for event in events)


def _make_message(answer: OwnAnswer) -> _Fields:
    """As it begins: with nothing in it yet."""
    head = _Fields(id=f"msg_{answer.id}", type="message", role="assistant", model=answer.model, content=[])
    head |= {"stop_reason": None, "stop_sequence": None}
    return head | {"usage": {"input_tokens": 0, "output_tokens": 0}}
