"""A model that searches its history in the middle of its replies, by a script, and a client that sends back
what it was shown.

The model gives one reply of the script to each request. What the client must see is the same script without
the searches.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.wire.recall import RECALL_TOOL
from tests.toy.counting import render_compact
from tests.toy.dialect import Dialect, Request
from tests.toy.reply import Reply, ToolCall, read_events, read_object
from tests.wire.turns import read_stream

# A reply, or what makes one of the request that it answers.
Line = Reply | Callable[[Request], Reply]


def make_recall(number: int, query: str) -> ToolCall:
    return ToolCall(id=f"call_recall_{number}", name=RECALL_TOOL, arguments=json.dumps({"query": query}))


def make_call(number: int) -> ToolCall:
    """Of one of the client's own tools."""
    arguments = json.dumps({"path": f"/src/{number}.py"})
    return ToolCall(id=f"call_own_{number}", name="read_file", arguments=arguments)


def tell(fact: str) -> Callable[[Request], Reply]:
    """The model's answer: the fact if a search has found it, and that it does not know it otherwise."""

    def answer(request: Request) -> Reply:
        return Reply(text=f"It is {fact}." if fact in find_results(request) else "I do not know.")

    return answer


def find_results(request: Request) -> str:
    """All that searches have found, in a request of any format."""
    values = request["messages"] if "messages" in request else request["input"]
    found: list[str] = []
    _collect(values, found)
    return "\n".join(found)


def _collect(value: object, found: list[str]) -> None:
    if isinstance(value, list):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        name = value.get("tool_call_id") or value.get("tool_use_id") or value.get("call_id")
        if str(name).startswith("call_recall_") and ("content" in value or "output" in value):
            found.append(render_compact(value))
        else:
            _collect(list(value.values()), found)


class ScriptedModel:
    """For `ToyUpstream.reply`. After its script it is content with everything."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._lines = list(lines)
        self.requests: list[Request] = []

    def __call__(self, request: Request) -> Reply:
        self.requests.append(request)
        line = self._lines.pop(0) if self._lines else Reply()
        return line if isinstance(line, Reply) else line(request)

    @property
    def left(self) -> int:
        return len(self._lines)


@dataclass(frozen=True)
class ShownReply:
    """What a client has seen of a reply, whatever its blocks are: texts without white space."""

    text: str = ""
    thinking: str = ""
    calls: tuple[tuple[str, str], ...] = ()


def join_replies(replies: Sequence[Reply]) -> ShownReply:
    """Replies of a script as one, without the searches."""
    return ShownReply(
        text=_squeeze("".join(reply.text or "" for reply in replies)),
        thinking=_squeeze("".join(reply.thinking or "" for reply in replies)),
        calls=tuple(
            (call.id, call.name) for reply in replies for call in reply.tool_calls if call.name != RECALL_TOOL
        ),
    )


def _squeeze(text: str) -> str:
    return "".join(text.split())


@dataclass(kw_only=True)
class ScriptClient:
    """A conversation in one of the formats. head: its envelope, with the history so far. rewrite: how it
    writes an item of a reply into its history.
    """

    dialect: Dialect
    head: Request
    is_streaming: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)
    rewrite: Callable[[Any], Any] = lambda item: item

    @property
    def items(self) -> list[Any]:
        items = self.head["messages"] if "messages" in self.head else self.head["input"]
        assert isinstance(items, list)
        return items

    @property
    def body(self) -> bytes:
        streaming = {"stream": True} if self.is_streaming else {}
        return json.dumps({**self.head, **streaming, **self.fields}).encode()

    def say(self, text: str) -> None:
        self.items.append({"role": "user", "content": text})

    def take(self, body: bytes) -> ShownReply:
        """Adds the reply to the history."""
        reply = {"/chat/completions": _take_chat, "/messages": _take_messages, "/responses": _take_responses}
        items = reply[self.dialect.path](body)
        self.items.extend(map(self.rewrite, items))
        return _show(items)

    def answer(self, shown: ShownReply) -> None:
        """The results of the calls of the last reply."""
        names = [name for name, _ in shown.calls]
        if self.dialect.path == "/messages":
            blocks = [{"type": "tool_result", "tool_use_id": name, "content": "done"} for name in names]
            self.items.append({"role": "user", "content": blocks})
        elif self.dialect.path == "/responses":
            self.items.extend({"type": "function_call_output", "call_id": n, "output": "done"} for n in names)
        else:
            self.items.extend({"role": "tool", "tool_call_id": name, "content": "done"} for name in names)


def _take_chat(body: bytes) -> list[Any]:
    whole: Any = read_object(body)
    if whole is not None:
        message = whole["choices"][0]["message"]
        return [{key: value for key, value in message.items() if value is not None or key == "content"}]
    reply = read_stream(body)
    assert (reply.roles, len(reply.heads), reply.is_done) == (["assistant"], 1, True)
    assert [call["index"] for call in reply.calls] == list(range(len(reply.calls)))
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.drawn_calls
    ]
    thinking = {"reasoning_content": reply.thoughts} if reply.thoughts else {}
    called = {"tool_calls": calls} if calls else {}
    return [{"role": "assistant", "content": reply.text, **thinking, **called}]


def _take_messages(body: bytes) -> list[Any]:
    whole = read_object(body)
    if whole is not None:
        return [{"role": "assistant", "content": whole["content"]}]
    blocks: list[dict[str, Any]] = []
    for event in read_events(body):
        _grow_blocks(blocks, event)
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"] or "{}")
    return [{"role": "assistant", "content": blocks}]


_DELTAS = {"text": "text", "thinking": "thinking", "signature": "signature", "partial_json": "input"}


def _grow_blocks(blocks: list[dict[str, Any]], event: Mapping[str, Any]) -> None:
    if event["type"] == "content_block_start":
        assert event["index"] == len(blocks)
        block = event["content_block"]
        blocks.append({**block, "input": ""} if block["type"] == "tool_use" else dict(block))
    if event["type"] == "content_block_delta":
        block, delta = blocks[event["index"]], event["delta"]
        block.update((into, block[into] + delta[key]) for key, into in _DELTAS.items() if key in delta)


def _take_responses(body: bytes) -> list[Any]:
    whole: Any = read_object(body)
    if whole is None:
        events: list[Any] = list(read_events(body))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        whole = events[-1]["response"]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == whole["output"]
    return list(whole["output"])


def _show(items: Sequence[Any]) -> ShownReply:
    """Of items of any format."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[tuple[str, str]] = []
    for item in items:
        for part in (item, *(item["content"] if isinstance(item.get("content"), list) else ())):
            kind = part.get("type")
            if kind in ("text", "output_text"):
                texts.append(part["text"])
            elif kind == "thinking":
                thoughts.append(part["thinking"])
            elif kind == "reasoning":
                thoughts += [summary["text"] for summary in part["summary"]]
            elif kind == "tool_use":
                calls.append((part["id"], part["name"]))
            elif kind == "function_call":
                calls.append((part["call_id"], part["name"]))
        if isinstance(item.get("content"), str):
            texts.append(item["content"])
        thoughts.append(item.get("reasoning_content") or "")
        calls += [(call["id"], call["function"]["name"]) for call in item.get("tool_calls") or ()]
    return ShownReply(_squeeze("".join(texts)), _squeeze("".join(thoughts)), tuple(calls))
