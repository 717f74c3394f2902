"""Counts what one request costs in Python calls, files entered and file boundaries crossed.

Three requests are counted, each on a warm gateway over real sockets: one that passes through far below
every threshold, one whose old tool results are cleared, and the turn after whose response a compaction is
scheduled. The gateway runs in the main thread, where every call is seen; stub upstream and client run in
another one.
Run with `make count`. ARGS="--files" names the files, and ARGS="--passed-through" counts only such a request.
"""

import asyncio
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

import uvloop

import gateway
from bench.stub import serve
from gateway.app.gateway import Gateway
from gateway.settings import load_settings

_OURS: Final = os.path.dirname(gateway.__file__) + os.sep
# A compaction is scheduled when this function of the gateway is called; the count ends there.
_SCHEDULED: Final = "Compactions.start"
# After the response: what the gateway still does for the request is over by then.
_SETTLE_SECONDS: Final = 0.05
_CONVERSATIONS: Final = 5
_TURNS: Final = 30
# A usual turn: its body does not pass a power of two, at which its branch gets another place.
_PASSED_TURN: Final = 5
_SETTINGS: Final = """
store: "memory:"
admin: {{port: 0}}
upstreams:
  default: {{base_url: "http://127.0.0.1:{port}/v1", formats: [chat], discover: false}}
models:
  - {{match: "wide", context: 2000000}}
  - {{match: "pruned", context: 48000}}
  - {{match: "compacted", context: 24000, policy: no-pruning}}
policies:
  no-pruning: {{compaction: {{prune: false}}}}
"""


@dataclass
class Count:
    """What was called while one request was under way. `crossings`: calls from one file into another."""

    calls: int = 0
    crossings: int = 0
    our_calls: int = 0
    our_crossings: int = 0
    files: set[str] = field(default_factory=set)
    is_scheduled: bool = False

    def add(self, frame: FrameType) -> None:
        code, caller = frame.f_code, frame.f_back
        is_crossing = caller is None or caller.f_code.co_filename != code.co_filename
        self.calls += 1
        self.crossings += is_crossing
        self.files.add(code.co_filename)
        if code.co_filename.startswith(_OURS):
            self.our_calls += 1
            self.our_crossings += is_crossing
            self.is_scheduled |= code.co_qualname == _SCHEDULED

    @property
    def our_files(self) -> list[str]:
        return sorted(name.removeprefix(_OURS) for name in self.files if name.startswith(_OURS))


class Profile:
    """Adds every call of the main thread to the count of the request that is under way."""

    def __init__(self) -> None:
        self.count: Count | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        count = self.count
        if event == "call" and count is not None and not count.is_scheduled:
            count.add(frame)


@dataclass(frozen=True)
class Case:
    """One kind of request. `model` chooses window and policy in the settings."""

    name: str
    model: str
    # Of each tool result.
    result_lines: int


_CASES: Final = (
    Case("passed through", "wide", 20),
    Case("pruned", "pruned", 250),
    Case("starts a compaction", "compacted", 100),
)


class Client:
    """Sends requests as an OpenAI client does, on one connection, and counts each."""

    def __init__(self, port: int, profile: Profile) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._profile = profile

    def send(self, body: bytes) -> tuple[Count, str]:
        """The count, and the plan that the gateway names in the response."""
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n"
            "Content-Type: application/json\r\nUser-Agent: OpenAI/Python 2.8.1\r\n"
            f"Authorization: Bearer sk-count\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        count = self._profile.count = Count()
        self._socket.sendall(head.encode() + body)
        plan = self._read_plan()
        time.sleep(_SETTLE_SECONDS)
        self._profile.count = None
        return count, plan

    def _read_plan(self) -> str:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, rest = data.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:])
        while len(rest) < int(fields["content-length"]):
            rest += self._receive()
        return fields["x-gateway-plan"]

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise SystemExit("count: the gateway closed the connection")
        return data


def count_case(case: Case, client: Client) -> Count:
    """The fewest calls of one request in each conversation but the first, which warms the gateway.

    What runs behind it now and then falls into the others.
    """
    found = [_count_conversation(case, client, number) for number in range(_CONVERSATIONS)]
    return min(found[1:], key=lambda count: count.calls)


def _count_conversation(case: Case, client: Client, number: int) -> Count:
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are a coding agent. " + _write(case.model, 60)},
        {"role": "user", "content": f"Task {number}: make the tests pass. " + _write(f"task {number}", 20)},
    ]
    for turn in range(_TURNS):
        count, plan = client.send(json.dumps({"model": case.model, "messages": messages}).encode())
        if _is_wanted(case, turn, count, plan):
            return count
        messages += _make_turn(f"{number}-{turn}", case.result_lines)
    raise SystemExit(f"count: no request was {case.name}")


def _is_wanted(case: Case, turn: int, count: Count, plan: str) -> bool:
    match case.name:
        case "passed through":
            return turn == _PASSED_TURN and plan == "passthrough"
        case "pruned":
            return plan == "pruned"
        case _:
            return count.is_scheduled and plan == "passthrough"


def _make_turn(name: str, result_lines: int) -> list[dict[str, object]]:
    function = {"name": "look", "arguments": json.dumps({"path": f"src/{name}.py"})}
    return [
        {
            "role": "assistant",
            "content": f"I look at file {name}.",
            "tool_calls": [{"id": f"call_{name}", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": f"call_{name}", "content": _write(name, result_lines)},
    ]


def _write(name: str, lines: int) -> str:
    """A text that no other conversation holds."""
    return "\n".join(f"{name}: line {at} of the text" for at in range(lines))


async def run(profile: Profile, cases: Sequence[Case]) -> list[tuple[Case, Count]]:
    upstream_port = _find_port()
    upstream = threading.Thread(target=lambda: asyncio.run(serve(upstream_port)), daemon=True)
    upstream.start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.yaml"
        path.write_text(_SETTINGS.format(port=upstream_port))
        async with Gateway(load_settings(path, {}, host="127.0.0.1", port=0)) as counted:
            await counted.process.tokenizer.load()
            return await asyncio.to_thread(_count_all, counted.port, profile, cases)


def _count_all(port: int, profile: Profile, cases: Sequence[Case]) -> list[tuple[Case, Count]]:
    client = Client(port, profile)
    return [(case, count_case(case, client)) for case in cases]


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def print_table(found: Sequence[tuple[Case, Count]]) -> None:
    print(f"{'':<22}{'gateway/ only':^32}{'with the libraries':^32}")
    print(f"{'one request that':<22}" + 2 * f"{'calls':>10}{'files':>10}{'crossings':>12}")
    for case, count in found:
        ours = f"{count.our_calls:>10}{len(count.our_files):>10}{count.our_crossings:>12}"
        print(f"{case.name:<22}{ours}{count.calls:>10}{len(count.files):>10}{count.crossings:>12}")


def main() -> None:
    profile = Profile()
    cases = _CASES[:1] if "--passed-through" in sys.argv[1:] else _CASES
    sys.setprofile(profile)
    try:
        found = uvloop.run(run(profile, cases))
    finally:
        sys.setprofile(None)
    print_table(found)
    if "--files" in sys.argv[1:]:
        for case, count in found:
            print(f"\n{case.name}: " + " ".join(count.our_files))


if __name__ == "__main__":
    main()
