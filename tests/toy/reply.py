"""The replies of the toy upstream as values, and as bytes: one JSON object or server-sent events.

The caller counts the tokens.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tests.toy.counting import TokenCounter, render_compact

UsageShape = Literal["openai", "bare", "none"]


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """namespace: of the tool, where the client offers it in one (Responses)."""

    id: str
    name: str
    arguments: str
    namespace: str | None = None

    def render(self) -> dict[str, object]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """finish_reason None: `tool_calls` or `stop`. usage: an object to send instead of the true one.

    thinking: the reasoning before it. mark: what the ids of its items are made of; None: the answer's number.
    """

    text: str | None = "Understood."
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str | None = None
    mark: str | None = None
    finish_reason: str | None = None
    usage_shape: UsageShape = "openai"
    usage: Mapping[str, object] | None = None
    cached_tokens: int = 0
    delta_chars: int = 60

    @property
    def finish(self) -> str:
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


def read_reply(message: Mapping[str, object], mark: str | None = None) -> Reply:
    """The reply that an assistant message of a history came from."""
    calls, thinking = message.get("tool_calls"), message.get("reasoning_content")
    return Reply(
        text=_read_text(message.get("content")),
        tool_calls=tuple(map(_read_call, calls)) if isinstance(calls, list) else (),
        thinking=thinking if isinstance(thinking, str) and thinking else None,
        mark=mark,
    )


def _read_text(content: object) -> str | None:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return content if isinstance(content, str) else None


def _read_call(call: Mapping[str, Mapping[str, str]]) -> ToolCall:
    function = call["function"]
    return ToolCall(id=str(call["id"]), name=function["name"], arguments=function["arguments"])


def with_room(reply: Reply, counter: TokenCounter, room_tokens: int) -> Reply:
    """The reply as a model stops it: text beyond the room is cut, finish reason `length`."""
    if count_reply(reply, counter) <= room_tokens:
        return reply
    thinking = counter.cut(reply.thinking or "", max(0, room_tokens)) or None
    text = counter.cut(reply.text or "", max(0, room_tokens - counter.text(thinking or "")))
    return replace(reply, thinking=thinking, text=text, tool_calls=(), finish_reason="length")


def count_reply(reply: Reply, counter: TokenCounter) -> int:
    """Completion tokens: the cost of the reply, without the message overhead in the next prompt."""
    said = counter.text(reply.text or "") + count_thinking(reply, counter)
    return said + sum(counter.text(c.name + c.arguments) for c in reply.tool_calls)


def count_thinking(reply: Reply, counter: TokenCounter) -> int:
    return counter.text(reply.thinking) if reply.thinking else 0


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
        usage["completion_tokens_details"] = {
            "reasoning_tokens": count_thinking(reply, counter),
            "audio_tokens": 0,
        }
    return usage


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The fields around a reply: the number of the response, the model's name, its usage."""

    number: int
    model: str
    usage: Mapping[str, object] | None
    include_usage: bool = False

    def head(self, kind: str) -> dict[str, object]:
        name = f"chatcmpl-{self.number}"
        return {"id": name, "object": kind, "created": 1_700_000_000, "model": self.model}


def render_json(reply: Reply, frame: Frame) -> bytes:
    message: dict[str, object] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
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
    for piece in cut_pieces(reply.thinking or "", reply.delta_chars):
        yield {"reasoning_content": piece}
    for piece in cut_pieces(reply.text or "", reply.delta_chars):
        yield {"content": piece}
    for index, call in enumerate(reply.tool_calls):
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}
        for piece in cut_pieces(call.arguments, reply.delta_chars):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def cut_pieces(text: str, size: int) -> Iterator[str]:
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


def render_named(value: Mapping[str, object]) -> bytes:
    """One event whose name is its type, as Responses and Messages have them."""
    return f"event: {value['type']}\n".encode() + _event(value)


def read_events(body: bytes) -> list[dict[str, object]]:
    """The JSON objects of a stream, without comments, `[DONE]` and invalid data."""
    lines = (line[5:].strip() for line in body.splitlines() if line.startswith(b"data:"))
    return [event for line in lines if (event := read_object(line)) is not None]


def read_object(data: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
