"""Responses: an answer of ours, as a response of one message.

Some clients do not recognise the end of a stream without usage: it says 0.
"""

from typing import Final

import msgspec

from gateway.wire.own_answer import OwnAnswer
from gateway.wire.sse import Event, render_event

_NOTHING_USED: Final = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}
# The one message of the output.
_AT: Final = {"output_index": 0}

_Fields = dict[str, object]


def render_own_answer(answer: OwnAnswer) -> bytes:
    message = _make_message(answer, "completed", [_make_part(answer.text)])
    final = _make_response(answer, "completed", [message]) | {"usage": _NOTHING_USED}
    if not answer.is_streamed:
        return msgspec.json.encode(final)
    begun = _make_response(answer, "in_progress", [])
    events = [
        _Fields(type="response.created", response=begun),
        _Fields(type="response.in_progress", response=begun),
        *_make_item_events(answer, message),
        _Fields(type="response.completed", response=final),
    ]
    return b"".join(_render_numbered(number, event) for number, event in enumerate(events))


def _make_item_events(answer: OwnAnswer, message: _Fields) -> list[_Fields]:
    text, part = answer.text, _make_part(answer.text)
    place = _Fields(item_id=message["id"], content_index=0) | _AT
    started = _make_message(answer, "in_progress", [])
    return [
        _Fields(type="response.output_item.added", item=started) | _AT,
        _Fields(type="response.content_part.added", part=_make_part("")) | place,
        _Fields(type="response.output_text.delta", delta=text, logprobs=[]) | place,
        _Fields(type="response.output_text.done", text=text, logprobs=[]) | place,
        _Fields(type="response.content_part.done", part=part) | place,
        _Fields(type="response.output_item.done", item=message) | _AT,
    ]


def _make_response(answer: OwnAnswer, status: str, output: list[_Fields]) -> _Fields:
    """With every field that the API's own clients take for granted. Nobody keeps it."""
    head = _Fields(id=f"resp_{answer.id}", object="response", created_at=answer.created_seconds)
    head |= {"status": status, "error": None, "incomplete_details": None, "instructions": None}
    head |= {"metadata": {}, "model": answer.model, "output": output, "parallel_tool_calls": True}
    head |= {"previous_response_id": None, "store": False, "temperature": None, "tool_choice": "auto"}
    return head | {"tools": [], "top_p": None, "truncation": "disabled", "usage": None}


def _make_message(answer: OwnAnswer, status: str, content: list[_Fields]) -> _Fields:
    head = _Fields(id=f"msg_{answer.id}", type="message", status=status)
    return head | {"role": "assistant", "content": content}


def _make_part(text: str) -> _Fields:
    return _Fields(type="output_text", text=text, annotations=[], logprobs=[])


def _render_numbered(number: int, event: _Fields) -> bytes:
    return render_event(
        Event(str(event["type"]), msgspec.json.encode(event | _Fields(sequence_number=number)))
    )
