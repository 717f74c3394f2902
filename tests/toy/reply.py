"""What the toy upstream answers, as a value, and its bytes: one JSON object or server-sent events.

Knows nothing of sockets. Token numbers are handed in by who counts.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tests.toy.counting import TokenCounter, render_compact

UsageShape = Literal["openai", "bare", "none"]


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    id: str
    name: str
    arguments: str

    def render(self) -> dict[str, object]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """finish_reason None: `tool_calls` or `stop`. usage: an object to send instead of the true one."""

    text: str | None = "Understood."
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage_shape: UsageShape = "openai"
    usage: Mapping[str, object] | None = None
    cached_tokens: int = 0
    delta_chars: int = 60

    @property
    def finish(self) -> str:
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


def with_room(reply: Reply, counter: TokenCounter, room_tokens: int) -> Reply:
    """The reply as a model stops it: text beyond the room is cut, finish reason `length`."""
    if count_reply(reply, counter) <= room_tokens:
        return reply
    text = counter.cut(reply.text or "", max(0, room_tokens))
    return replace(reply, text=text, tool_calls=(), finish_reason="length")


def count_reply(reply: Reply, counter: TokenCounter) -> int:
    """Completion tokens: what the reply costs, without the frame that the next prompt puts around it."""
    return counter.text(reply.text or "") + sum(counter.text(c.name + c.arguments) for c in reply.tool_calls)


def make_usage(reply: Reply, prompt_tokens: int, counter: TokenCounter) -> Mapping[str, object] | None:
    if reply.usage is not None or reply.usage_shape == "none":
        return reply.usage
    completion_tokens = count_reply(reply, counter)
    usage: dict[str, object] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    if reply.usage_shape == "openai":
        usage["prompt_tokens_details"] = {"cached_tokens": reply.cached_tokens, "audio_tokens": 0}
        usage["completion_tokens_details"] = {"reasoning_tokens": 0, "audio_tokens": 0}
    return usage


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What surrounds a reply: the answer's number, the model's name, its usage."""

    number: int
    model: str
    usage: Mapping[str, object] | None
    include_usage: bool = False

    def head(self, kind: str) -> dict[str, object]:
        name = f"chatcmpl-{self.number}"
        return {"id": name, "object": kind, "created": 1_700_000_000, "model": self.model}


def render_json(reply: Reply, frame: Frame) -> bytes:
    message: dict[str, object] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.tool_calls:
        message["tool_calls"] = [call.render() for call in reply.tool_calls]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish}
    usage = {} if frame.usage is None else {"usage": frame.usage}
    answer = frame.head("chat.completion") | {"choices": [choice]} | usage
    return json.dumps(answer, ensure_ascii=False).encode()


def render_events(reply: Reply, frame: Frame) -> Iterator[bytes]:
    """Server-sent events, one per item, as OpenAI: `usage: null` and a last chunk only when asked for."""
    for delta in _deltas(reply):
        yield _chunk(frame, delta, None)
    yield _chunk(frame, {}, reply.finish)
    if frame.include_usage and frame.usage is not None:
        yield _event(frame.head("chat.completion.chunk") | {"choices": [], "usage": frame.usage})
    yield b"data: [DONE]\n\n"


def _deltas(reply: Reply) -> Iterator[dict[str, object]]:
    yield {"role": "assistant", "content": "" if reply.text else None}
    for piece in _pieces(reply.text or "", reply.delta_chars):
        yield {"content": piece}
    for index, call in enumerate(reply.tool_calls):
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
        for piece in _pieces(call.arguments, reply.delta_chars):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))


def _chunk(frame: Frame, delta: Mapping[str, object], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    chunk = frame.head("chat.completion.chunk") | {"choices": [choice]}
    return _event(chunk | {"usage": None} if frame.include_usage else chunk)


def _event(value: Mapping[str, object]) -> bytes:
    return b"data: " + render_compact(value).encode() + b"\n\n"


def render_error(message: str, code: str | None = None, kind: str = "invalid_request_error") -> bytes:
    """OpenAI's error object."""
    param = "messages" if code == "context_length_exceeded" else None
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()
