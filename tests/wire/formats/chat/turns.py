"""Drawn responses of Chat Completions as servers stream them, and what a client makes of a stream."""

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from gateway.wire.recall import RECALL_TOOL, RecallRequest
from gateway.wire.response.raw_events import RawEventSplitter

_TEXTS = st.text(st.sampled_from('ab \n"\\é\U0001f600'), min_size=1, max_size=6)


@dataclass(frozen=True)
class DrawnCall:
    id: str
    name: str
    arguments: str

    @property
    def is_own(self) -> bool:
        return self.name == RECALL_TOOL


@dataclass(frozen=True)
class DrawnResponse:
    texts: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    calls: tuple[DrawnCall, ...] = ()

    @property
    def is_solo(self) -> bool:
        return bool(self.calls) and all(call.is_own for call in self.calls)


@dataclass(frozen=True, kw_only=True)
class ServerStyle:
    """How a server streams.

    numbering: an index for each call, 0 for all, or none. pieces: characters of arguments in a chunk, 0 for
    the whole call in one chunk. names: the name comes in pieces of this length.
    """

    numbering: str = "each"
    pieces: int = 3
    names: int = 99
    role_always: bool = False
    calls_together: bool = False
    finish_with_content: bool = False
    line_end: str = "\n"
    separators: tuple[str, str] = (",", ":")
    comments: bool = False
    lines: bool = False
    usage: str = "chunk"
    head: dict[str, Any] = field(default_factory=lambda: {"id": "c1", "created": 5, "model": "m"})


STYLES = st.builds(
    ServerStyle,
    numbering=st.sampled_from(["each", "each", "zero", "none"]),
    pieces=st.integers(0, 9),
    names=st.sampled_from([99, 99, 6, 1]),
    role_always=st.booleans(),
    calls_together=st.booleans(),
    finish_with_content=st.booleans(),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    separators=st.sampled_from([(",", ":"), (", ", ": ")]),
    comments=st.booleans(),
    lines=st.booleans(),
    usage=st.sampled_from(["chunk", "always", "none"]),
)


def draw_call(draw: st.DrawFn, name: str, number: int) -> DrawnCall:
    arguments = {"query": draw(_TEXTS)} if name == RECALL_TOOL else {"path": draw(_TEXTS), "index": 3}
    return DrawnCall(f"call_{number}", name, json.dumps(arguments))


@st.composite
def turns(draw: st.DrawFn) -> list[DrawnResponse]:
    """All but the last response call the gateway's tool only."""
    count = draw(st.integers(0, 3))
    number = iter(range(100))
    responses = []
    for at in range(count + 1):
        others = [RECALL_TOOL, "read", "recall", "recall_historian", "x"]
        if at < count:
            names = [RECALL_TOOL] * draw(st.integers(1, 2))
        else:
            names = draw(st.lists(st.sampled_from(others), max_size=4))
            names = [] if set(names) == {RECALL_TOOL} else names
        texts, thoughts = (tuple(draw(st.lists(_TEXTS, max_size=3))) for _ in range(2))
        calls = tuple(draw_call(draw, name, next(number)) for name in names)
        responses.append(DrawnResponse(texts, thoughts, calls))
    return responses


def render_stream(response: DrawnResponse, style: ServerStyle, number: int = 1) -> bytes:
    """number: of the response in its turn."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": text} for text in response.thoughts]
    deltas += [{"content": text} for text in response.texts]
    pieces = [_list_pieces(at, call, style) for at, call in enumerate(response.calls)]
    if style.calls_together and style.numbering == "each":
        longest = max(map(len, pieces), default=0)
        deltas += [{"tool_calls": [each[at] for each in pieces if at < len(each)]} for at in range(longest)]
    else:
        deltas += [{"tool_calls": [piece]} for each in pieces for piece in each]
    reason = "tool_calls" if response.calls else "stop"
    head = {**style.head, "id": f"{style.head['id']}-{number}", "object": "chat.completion.chunk"}
    chunks = []
    for delta in [*deltas, {}]:
        whole = {"role": "assistant", **delta} if style.role_always else delta
        chunks.append({**head, "choices": [{"index": 0, "delta": whole, "finish_reason": None}]})
    if style.finish_with_content:
        chunks.pop()
    chunks[-1]["choices"][0]["finish_reason"] = reason
    usage = {"prompt_tokens": 10 * number, "completion_tokens": number, "total_tokens": 11 * number}
    if style.usage == "always":
        chunks = [{**chunk, "usage": usage} for chunk in chunks]
    elif style.usage == "chunk":
        chunks.append({**head, "choices": [], "usage": usage})
    return b"".join(_render_event(json.dumps(c, separators=style.separators), style) for c in chunks) + (
        _render_event("[DONE]", style)
    )


def _render_event(data: str, style: ServerStyle) -> bytes:
    end = style.line_end
    comment = f": alive{end}{end}" if style.comments else ""
    if style.lines and data.startswith("{"):
        data = f"{{{end}data: {data[1:]}"
    return f"{comment}data: {data}{end}{end}".encode()


def _list_pieces(at: int, call: DrawnCall, style: ServerStyle) -> list[dict[str, Any]]:
    numbering = {"each": {"index": at}, "zero": {"index": 0}, "none": {}}[style.numbering]
    names = [call.name[start : start + style.names] for start in range(0, len(call.name), style.names)]
    arguments = [
        call.arguments[start : start + style.pieces]
        for start in range(0, len(call.arguments) if style.pieces else 0, style.pieces or 1)
    ]
    first = {"name": names[0], "arguments": "" if style.pieces or len(names) > 1 else call.arguments}
    pieces = [{**numbering, "id": call.id, "type": "function", "function": first}]
    for name in names[1:]:
        is_last = name is names[-1] and not style.pieces
        function = {"name": name, "arguments": call.arguments if is_last else ""}
        pieces.append({**numbering, "function": function})
    return pieces + [{**numbering, "function": {"arguments": piece}} for piece in arguments]


def render_whole(response: DrawnResponse, number: int = 1, indent: int | None = None) -> bytes:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in response.calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(response.texts) or None}
    if response.thoughts:
        message["reasoning_content"] = "".join(response.thoughts)
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return json.dumps({"id": f"c{number}", "choices": [choice], "n": 1.10}, indent=indent).encode()


@dataclass
class ClientReply:
    """What a client has put together."""

    roles: list[str] = field(default_factory=list)
    heads: set[tuple[Any, ...]] = field(default_factory=set)
    text: str = ""
    thoughts: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    usage: dict[str, Any] | None = None
    is_done: bool = False

    @property
    def drawn_calls(self) -> list[DrawnCall]:
        return [DrawnCall(call["id"], call["name"], call["arguments"]) for call in self.calls]


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


def list_queries(request: RecallRequest) -> list[str | None]:
    return [call.query for call in request.calls]
