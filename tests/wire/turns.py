"""Turns in which a model searches its history, as servers stream them and as a client reads them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from gateway.wire.recall import RECALL_TOOL
from gateway.wire.response.raw_events import RawEventSplitter
from tests.toy.reply import Reply, ToolCall

_TEXTS = st.text(st.sampled_from('ab \n"\\é\U0001f600'), min_size=1, max_size=6)


def make_call(number: int, name: str = RECALL_TOOL, text: str = "path") -> ToolCall:
    given: dict[str, object] = {"query": text} if name == RECALL_TOOL else {"path": text, "index": 3}
    return ToolCall(id=f"call_{number}", name=name, arguments=json.dumps(given))


def list_own(reply: Reply) -> list[ToolCall]:
    """The searches."""
    return [call for call in reply.tool_calls if call.name == RECALL_TOOL]


@st.composite
def turns(draw: st.DrawFn) -> list[Reply]:
    """All but the last response call the gateway's tool only."""
    count, number = draw(st.integers(0, 3)), iter(range(100))
    replies = []
    for at in range(count + 1):
        names = [RECALL_TOOL] * draw(st.integers(1, 2))
        if at == count:
            names = draw(st.lists(st.sampled_from([RECALL_TOOL, "read", "recall_historian"]), max_size=3))
            names = [] if set(names) == {RECALL_TOOL} else sorted(names, key=RECALL_TOOL.__eq__)
        text = draw(st.none() | _TEXTS.map("x{}".format)) if names else "So it is."
        calls = tuple(make_call(next(number), name, "q" + draw(_TEXTS)) for name in names)
        thinking = draw(st.none() | st.sampled_from(["I see.", "é \U0001f600"]))
        replies.append(Reply(text=text, thinking=thinking, tool_calls=calls, delta_chars=3, mark=f"m{at}"))
    return replies


@dataclass(frozen=True, kw_only=True)
class ServerStyle:
    """How a server streams Chat Completions.

    numbering: an index for each call, 0 for all, or none. pieces: characters of arguments in a chunk, 0 for
    the whole call in one chunk. names: the name comes in pieces of this length.
    """

    numbering: str = "each"
    pieces: int = 3
    names: int = 99
    role_always: bool = False
    finish_with_content: bool = False
    line_end: str = "\n"
    separators: tuple[str, str] = (",", ":")
    comments: bool = False
    lines: bool = False


STYLES = st.builds(
    ServerStyle,
    numbering=st.sampled_from(["each", "each", "zero", "none"]),
    pieces=st.integers(0, 9),
    names=st.sampled_from([99, 99, 6, 1]),
    role_always=st.booleans(),
    finish_with_content=st.booleans(),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    separators=st.sampled_from([(",", ":"), (", ", ": ")]),
    comments=st.booleans(),
    lines=st.booleans(),
)


def render_stream(reply: Reply, style: ServerStyle, number: int = 1) -> bytes:
    """number: of the response in its turn."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": reply.thinking}] if reply.thinking else []
    deltas += [{"content": piece} for piece in reply.text or ""]
    pieces = [_list_pieces(at, call, style) for at, call in enumerate(reply.tool_calls)]
    deltas += [{"tool_calls": [piece]} for each in pieces for piece in each]
    head = {"id": f"c1-{number}", "created": 5, "model": "m", "object": "chat.completion.chunk"}
    chunks: list[dict[str, Any]] = []
    for delta in [*deltas, {}]:
        whole = {"role": "assistant", **delta} if style.role_always else delta
        chunks.append({**head, "choices": [{"index": 0, "delta": whole, "finish_reason": None}]})
    if style.finish_with_content:
        chunks.pop()
    chunks[-1]["choices"][0]["finish_reason"] = reply.finish
    chunks.append({**head, "choices": [], "usage": {"prompt_tokens": 10 * number, "completion_tokens": 1}})
    events = [json.dumps(chunk, separators=style.separators) for chunk in chunks]
    return b"".join(_render_event(event, style) for event in [*events, "[DONE]"])


def _render_event(data: str, style: ServerStyle) -> bytes:
    end = style.line_end
    comment = f": alive{end}{end}" if style.comments else ""
    if style.lines and data.startswith("{"):
        data = f"{{{end}data: {data[1:]}"
    return f"{comment}data: {data}{end}{end}".encode()


def _list_pieces(at: int, call: ToolCall, style: ServerStyle) -> list[dict[str, Any]]:
    numbering = {"each": {"index": at}, "zero": {"index": 0}, "none": {}}[style.numbering]
    names, size = _cut(call.name, style.names), style.pieces or len(call.arguments)
    first = {"name": names[0], "arguments": "" if style.pieces or len(names) > 1 else call.arguments}
    pieces = [{**numbering, "id": call.id, "type": "function", "function": first}]
    pieces += [{**numbering, "function": {"name": name, "arguments": ""}} for name in names[1:]]
    given = [] if first["arguments"] else _cut(call.arguments, size)
    return pieces + [{**numbering, "function": {"arguments": piece}} for piece in given]


def _cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


@dataclass
class ClientReply:
    """What a client has put together of a stream of Chat Completions."""

    roles: list[str] = field(default_factory=list)
    heads: set[tuple[Any, ...]] = field(default_factory=set)
    text: str = ""
    thoughts: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    is_done: bool = False

    @property
    def drawn_calls(self) -> Sequence[ToolCall]:
        names = ("id", "name", "arguments")
        return [ToolCall(**{name: call[name] for name in names}) for call in self.calls]


def read_stream(stream: bytes) -> ClientReply:
    """As clients do: calls by their index, or else by a new id."""
    reply = ClientReply()
    splitter = RawEventSplitter()
    for _, event in [*splitter.feed(stream), *splitter.finish()]:
        if event is None:
            continue
        if event.data == b"[DONE]":
            reply.is_done = True
            continue
        chunk = json.loads(event.data)
        reply.heads.add((chunk["id"], chunk["created"], chunk["model"]))
        reply.usage = chunk.get("usage") or reply.usage
        for choice in chunk["choices"]:
            _read_choice(reply, choice)
    return reply


def _read_choice(reply: ClientReply, choice: dict[str, Any]) -> None:
    delta = choice["delta"]
    if "role" in delta:
        reply.roles.append(delta["role"])
    reply.text += delta.get("content") or ""
    reply.thoughts += delta.get("reasoning_content") or ""
    if choice["finish_reason"]:
        reply.finish_reasons.append(choice["finish_reason"])
    for piece in delta.get("tool_calls") or ():
        newest = reversed(reply.calls)
        call = next((call for call in newest if call["index"] == piece.get("index")), None)
        if call is None or piece.get("id", call["id"]) != call["id"]:
            call = {"index": piece.get("index"), "id": piece["id"], "name": "", "arguments": ""}
            reply.calls.append(call)
        call["name"] += piece["function"].get("name") or ""
        call["arguments"] += piece["function"].get("arguments") or ""
