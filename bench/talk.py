"""Growing conversations. The whole history is one piece of JSON; each turn sends a longer part of it.

All requests are built before a measurement runs.
"""

import json
import random
from dataclasses import dataclass
from typing import Final

_random = random.Random(20_261_120)
_TEXT: Final = (
    "def return class import self.value for item in range(10): if result is None: raise ValueError('no') "
    'print("done") # the parser reads one token at a time and never looks back 0x1f 42 3.14 {"key": [1, 2]}'
)
_POOL: Final = " ".join(_random.choices(_TEXT.split(" "), k=40_000)).replace(" # ", "\n# ")
_TOOLS: Final = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": _POOL[number * 300 : number * 300 + 300],
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            },
        }
        for number in range(12)
    ]
).encode()
# The headers of an OpenAI SDK.
_HEAD: Final = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n"
    "Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nContent-Type: application/json\r\n"
    "User-Agent: OpenAI/Python 2.8.1\r\nX-Stainless-Arch: x64\r\nX-Stainless-Async: async:asyncio\r\n"
    "X-Stainless-Lang: python\r\nX-Stainless-OS: Linux\r\nX-Stainless-Package-Version: 2.8.1\r\n"
    "X-Stainless-Retry-Count: 0\r\nX-Stainless-Read-Timeout: 600\r\nX-Stainless-Runtime: CPython\r\n"
    "X-Stainless-Runtime-Version: 3.11.7\r\nAuthorization: Bearer sk-bench-{key}\r\n{more}Content-Length: "
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a conversation looks like on the wire.

    start_bytes: history of the first request. turn_bytes: what each further one adds. events: deltas of
    each answer, 0 for one that is not streamed. asks_usage: the client requests usage. bypasses: the
    request tells the gateway to pass it on unread.
    """

    model: str
    start_bytes: int
    turn_bytes: int
    turns: int
    has_tools: bool = True
    events: int = 0
    asks_usage: bool = False
    bypasses: bool = False


@dataclass(frozen=True)
class Talk:
    """One conversation. ends: the end of each turn's history in `history`."""

    head: bytes
    history: bytes
    ends: tuple[int, ...]
    rest: bytes

    def render(self, turn: int) -> tuple[bytes, memoryview, bytes]:
        """The request of a turn in pieces. The long piece is not copied."""
        end = self.ends[turn]
        length = b"%d\r\n\r\n" % (end + len(self.rest))
        return self.head + length, memoryview(self.history)[:end], self.rest


def make_talks(shape: Shape, count: int) -> list[Talk]:
    """New conversations. Eight keys take turns."""
    return [_make_talk(shape, key=number % 8) for number in range(count)]


def _make_talk(shape: Shape, key: int) -> Talk:
    rest = _render_rest(shape)
    name = f"{_random.getrandbits(64):016x}"
    system = {"role": "system", "content": "You are a coding agent. Be brief."}
    task = {"role": "user", "content": f"Task {name}: make the tests pass."}
    parts = ['{"messages":[', json.dumps(system), ",", json.dumps(task)]
    size = sum(map(len, parts))
    while size < shape.start_bytes - len(rest):
        size += _add_turn(parts, min(shape.turn_bytes, 1_500), shape.has_tools)
    ends = [size]
    for _ in range(shape.turns - 1):
        size += _add_turn(parts, shape.turn_bytes, shape.has_tools)
        ends.append(size)
    more = f"x-bench-events: {shape.events}\r\n" if shape.events else ""
    more += "x-gateway-bypass: 1\r\n" if shape.bypasses else ""
    head = _HEAD.format(key=key, more=more).encode()
    return Talk(head, "".join(parts).encode(), tuple(ends), rest)


def _render_rest(shape: Shape) -> bytes:
    rest = b'],"model":"%s","max_tokens":64' % shape.model.encode()
    if shape.has_tools:
        rest += b',"tools":' + _TOOLS
    if shape.events:
        rest += b',"stream":true'
    if shape.asks_usage:
        rest += b',"stream_options":{"include_usage":true}'
    return rest + b"}"


def _add_turn(parts: list[str], size: int, has_tools: bool) -> int:
    """Adds the last reply and the next message of the client. Returns the number of bytes."""
    if not has_tools:
        half = max(20, size // 2 - 40)
        added = [_render("assistant", half), _render("user", half)]
    else:
        identity = f"call_{_random.getrandbits(48):012x}"
        path = json.dumps({"path": f"src/{identity}.py"})
        call = {"id": identity, "type": "function", "function": {"name": "tool_1", "arguments": path}}
        reply = {"role": "assistant", "content": make_text(120), "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": identity, "content": make_text(max(20, size - 430))}
        added = [json.dumps(reply), json.dumps(result)]
    text = "," + ",".join(added)
    parts.append(text)
    return len(text)


def _render(role: str, size: int) -> str:
    return json.dumps({"role": role, "content": make_text(size)})


def make_text(size: int) -> str:
    start = _random.randrange(len(_POOL) - min(size, len(_POOL) - 1))
    return (
        (_POOL[start:] + _POOL * (size // len(_POOL) + 1))[:size]
        if size > 4_096
        else _POOL[start : start + size]
    )
