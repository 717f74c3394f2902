"""A reply in Responses: output items, the response object, and its events.

The toy and the agent that sends its history back make the same items.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.toy.counting import TokenCounter
from tests.toy.reply import Reply, count_reply, count_thinking, cut_pieces, render_named
from tests.toy.seal import Sealed, seal
from tests.toy.validity_responses import make_follower_mark

Item = dict[str, object]


def make_output(reply: Reply, mark: str) -> list[Item]:
    """Items for reasoning, text and calls. Reasoning has its encrypted content; the caller removes it if
    need be.
    """
    said = [_make_message(reply.text, mark)] if reply.text else []
    calls = [_make_call(reply, index, mark) for index in range(len(reply.tool_calls))]
    items = said + calls or [_make_message("", mark)]
    if not reply.thinking:
        return items
    secret = seal(Sealed(reply.thinking, make_follower_mark(items[0])))
    summary = [{"type": "summary_text", "text": reply.thinking[:80]}]
    reasoning: Item = {
        "id": f"rs_{mark}",
        "type": "reasoning",
        "summary": summary,
        "encrypted_content": secret,
    }
    return [reasoning, *items]


def _make_message(text: str, mark: str) -> Item:
    part = {"type": "output_text", "annotations": [], "text": text}
    head: Item = {"id": f"msg_{mark}", "type": "message", "status": "completed", "role": "assistant"}
    return head | {"content": [part]}


def _make_call(reply: Reply, index: int, mark: str) -> Item:
    call = reply.tool_calls[index]
    item: Item = {"id": f"fc_{mark}_{index}", "type": "function_call", "status": "completed"}
    named: Item = {"namespace": call.namespace} if call.namespace is not None else {}
    return item | named | {"call_id": call.id, "name": call.name, "arguments": call.arguments}


def make_usage(reply: Reply, prompt_tokens: int, counter: TokenCounter) -> Mapping[str, object] | None:
    if reply.usage is not None or reply.usage_shape == "none":
        return reply.usage
    output_tokens = count_reply(reply, counter)
    usage: Item = {"input_tokens": prompt_tokens, "output_tokens": output_tokens}
    usage["total_tokens"] = prompt_tokens + output_tokens
    if reply.usage_shape == "bare":
        return usage
    details: Item = {"input_tokens_details": {"cached_tokens": reply.cached_tokens}}
    details["output_tokens_details"] = {"reasoning_tokens": count_thinking(reply, counter)}
    return usage | details


_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The fields around the output: the response's id, copied fields of the request, its usage."""

    response_id: str
    request: Mapping[str, object]
    usage: Mapping[str, object] | None
    delta_chars: int = 60

    def response(self, status: str, output: Sequence[Item], **more: object) -> Item:
        """The response object in one of its states; `more` replaces defaults."""
        fields = ("instructions", "max_output_tokens", "previous_response_id", "reasoning", "metadata")
        repeated = {name: self.request.get(name) for name in fields}
        head: Item = {"id": self.response_id, "object": "response", "created_at": 1_700_000_000}
        head |= {"status": status, "error": None, "incomplete_details": None, **repeated}
        head |= {"model": self.request.get("model"), "output": list(output), "parallel_tool_calls": True}
        head |= {"store": self.request.get("store", True), "tools": self.request.get("tools") or []}
        return head | {"truncation": "disabled", "usage": None} | more

    def final(self, reply: Reply, output: Sequence[Item]) -> Item:
        reason = _INCOMPLETE.get(reply.finish)
        if reason is None:
            return self.response("completed", output, usage=self.usage)
        cut = [*output[:-1], output[-1] | {"status": "incomplete"}]
        return self.response("incomplete", cut, usage=self.usage, incomplete_details={"reason": reason})


def render_events(reply: Reply, output: Sequence[Item], frame: Frame) -> Iterator[bytes]:
    """All events in order, numbered; no `[DONE]`."""
    final = frame.final(reply, output)
    return render_numbered([*_begin(frame), *_items(output, frame.delta_chars), _end(final)])


def render_failed(error: Mapping[str, object], frame: Frame) -> Iterator[bytes]:
    """A stream that was begun and cannot go on."""
    failed = frame.response("failed", [], error={"code": error["code"], "message": error["message"]})
    return render_numbered([*_begin(frame), {"type": "response.failed", "response": failed}])


def render_numbered(events: Sequence[Item]) -> Iterator[bytes]:
    for number, event in enumerate(events):
        yield render_named({"type": event["type"], "sequence_number": number} | event)


def _begin(frame: Frame) -> Iterator[Item]:
    yield {"type": "response.created", "response": frame.response("in_progress", [])}
    yield {"type": "response.in_progress", "response": frame.response("in_progress", [])}


def _end(final: Item) -> Item:
    return {"type": f"response.{final['status']}", "response": final}


def _items(output: Sequence[Item], delta_chars: int) -> Iterator[Item]:
    for index, item in enumerate(output):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {"status": "in_progress"} if "status" in item else {}
        hollow = item | empty | {name: type(item[name])() for name in _GROWING if name in item}
        yield {"type": "response.output_item.added", "output_index": index, "item": hollow}
        yield from (event | at for event in _BUILDS[str(item["type"])](item, delta_chars))
        yield {"type": "response.output_item.done", "output_index": index, "item": item}


_GROWING = ("content", "summary", "arguments", "encrypted_content")


def _build_message(item: Item, delta_chars: int) -> Iterator[Item]:
    content = item["content"]
    assert isinstance(content, list)
    for index, part in enumerate(content):
        at: Item = {"content_index": index}
        yield {"type": "response.content_part.added", "part": part | {"text": ""}} | at
        for piece in cut_pieces(part["text"], delta_chars):
            yield {"type": "response.output_text.delta", "delta": piece, "logprobs": []} | at
        yield {"type": "response.output_text.done", "text": part["text"], "logprobs": []} | at
        yield {"type": "response.content_part.done", "part": part} | at


def _build_reasoning(item: Item, delta_chars: int) -> Iterator[Item]:
    summary = item["summary"]
    assert isinstance(summary, list)
    for index, part in enumerate(summary):
        at: Item = {"summary_index": index}
        yield {"type": "response.reasoning_summary_part.added", "part": part | {"text": ""}} | at
        for piece in cut_pieces(part["text"], delta_chars):
            yield {"type": "response.reasoning_summary_text.delta", "delta": piece} | at
        yield {"type": "response.reasoning_summary_text.done", "text": part["text"]} | at
        yield {"type": "response.reasoning_summary_part.done", "part": part} | at


def _build_call(item: Item, delta_chars: int) -> Iterator[Item]:
    arguments = str(item["arguments"])
    for piece in cut_pieces(arguments, delta_chars):
        yield {"type": "response.function_call_arguments.delta", "delta": piece}
    yield {"type": "response.function_call_arguments.done", "arguments": arguments}


_BUILDS = {"message": _build_message, "reasoning": _build_reasoning, "function_call": _build_call}
