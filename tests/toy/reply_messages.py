"""A reply in Anthropic Messages: content blocks, the message object, and its events.

The toy and the agent that sends its history back make the same blocks.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.toy.counting import TokenCounter
from tests.toy.counting_messages import count_message
from tests.toy.reply import Reply, ToolCall, count_reply, cut_pieces, render_named
from tests.toy.seal import sign
from tests.toy.validity_messages import count_marks

Block = dict[str, object]
_STOPS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
# As Claude Code sees it, whose mark is on the newest block.
_UNCACHED_TOKENS = 4
_ID_MISFIT = re.compile(r"[^a-zA-Z0-9_-]")


def make_blocks(reply: Reply) -> list[Block]:
    """Blocks for thinking, text and calls. Empty texts have no block, because Anthropic refuses them."""
    blocks: list[Block] = []
    if reply.thinking:
        blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": sign(reply.thinking)})
    if reply.text and reply.text.strip():
        blocks.append({"type": "text", "text": reply.text})
    return [*blocks, *map(_make_call, reply.tool_calls)]


def _make_call(call: ToolCall) -> Block:
    return {"type": "tool_use", "id": make_id(call.id), "name": call.name, "input": _read_input(call)}


def make_id(call_id: str) -> str:
    """Anthropic takes no other characters."""
    return _ID_MISFIT.sub("_", call_id)


def _read_input(call: ToolCall) -> object:
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        arguments = call.arguments
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def make_usage(
    reply: Reply, request: Mapping[str, object], prompt_tokens: int, counter: TokenCounter
) -> Mapping[str, object] | None:
    """With cache marks, all but a few tokens is read from a cache or, of the last message, written to it."""
    if reply.usage is not None or reply.usage_shape == "none":
        return reply.usage
    output_tokens = count_reply(reply, counter)
    if reply.usage_shape == "bare":
        return {"input_tokens": prompt_tokens, "output_tokens": output_tokens}
    read, written = _split_cached(request, prompt_tokens, counter)
    read = min(reply.cached_tokens, prompt_tokens - written) or read
    return {
        "input_tokens": prompt_tokens - read - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "output_tokens": output_tokens,
    }


def _split_cached(
    request: Mapping[str, object], prompt_tokens: int, counter: TokenCounter
) -> tuple[int, int]:
    messages = request.get("messages")
    if not isinstance(messages, list) or not count_marks([request.get("system"), messages]):
        return 0, 0
    cached = max(0, prompt_tokens - _UNCACHED_TOKENS)
    written = cached if len(messages) == 1 else min(cached, count_message(counter, messages[-1]))
    return cached - written, written


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The fields around the blocks."""

    message_id: str
    model: str
    usage: Mapping[str, object] | None
    delta_chars: int = 60

    def message(
        self, content: Sequence[Block], stop: str | None, usage: Mapping[str, object] | None
    ) -> Block:
        head: Block = {"id": self.message_id, "type": "message", "role": "assistant", "model": self.model}
        head |= {"content": list(content), "stop_reason": stop, "stop_sequence": None}
        return head if usage is None else head | {"usage": usage}


def choose_stop(reply: Reply) -> str:
    return _STOPS.get(reply.finish, reply.finish)


def render_json(reply: Reply, blocks: Sequence[Block], frame: Frame) -> bytes:
    return json.dumps(frame.message(blocks, choose_stop(reply), frame.usage), ensure_ascii=False).encode()


def render_events(reply: Reply, blocks: Sequence[Block], frame: Frame) -> Iterator[bytes]:
    """The prompt's usage comes first, the output's at the end."""
    yield from render_start(frame)
    for index, block in enumerate(blocks):
        for event in _block_events(block, frame.delta_chars):
            yield render_named({"type": event["type"], "index": index} | event)
    delta: Block = {"stop_reason": choose_stop(reply), "stop_sequence": None}
    usage = {} if frame.usage is None else {"usage": {"output_tokens": frame.usage.get("output_tokens", 0)}}
    yield render_named({"type": "message_delta", "delta": delta, **usage})
    yield render_named({"type": "message_stop"})


def render_start(frame: Frame) -> Iterator[bytes]:
    begun = None if frame.usage is None else {**frame.usage, "output_tokens": 1}
    yield render_named({"type": "message_start", "message": frame.message([], None, begun)})
    yield render_named({"type": "ping"})


def _block_events(block: Block, delta_chars: int) -> Iterator[Block]:
    hollow, deltas = _unfold(block, delta_chars)
    yield {"type": "content_block_start", "content_block": hollow}
    for delta in deltas:
        yield {"type": "content_block_delta", "delta": delta}
    yield {"type": "content_block_stop"}


def _unfold(block: Block, delta_chars: int) -> tuple[Block, Sequence[Block]]:
    match block:
        case {"type": "thinking", "thinking": str(text), "signature": signature}:
            pieces = cut_pieces(text, delta_chars)
            deltas: list[Block] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
            hollow = block | {"thinking": "", "signature": ""}
            return hollow, [*deltas, {"type": "signature_delta", "signature": signature}]
        case {"type": "tool_use", "input": arguments}:
            pieces = cut_pieces(json.dumps(arguments, ensure_ascii=False), delta_chars)
            parts = ["", *pieces]
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": p} for p in parts]
        case {"type": "redacted_thinking"}:
            return block, []
        case _:
            pieces = cut_pieces(str(block.get("text", "")), delta_chars)
            return block | {"text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]
