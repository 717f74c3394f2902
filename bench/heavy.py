"""Honest requests that cost much, sent one after the other; each kind has a tenant of its own.

Every request begins a conversation, so nothing of it is known. Run as `python -m bench.heavy PORT KIND …`:
prints `ready`, sends until its input ends, and prints one line of JSON: the number of answers of each kind.
"""

import http.client
import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from bench.talk import make_text

# One window is never full, one is nearly full, and one is too small for the requests that name it.
HEAVY_MODELS: Final = """
  - {match: "bench-vast", context: 50000000}
  - {match: "bench-near", context: 1600000}
  - {match: "bench-tight", context: 96000}
"""
_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "bench"}


@dataclass(frozen=True)
class HeavyKind:
    """render: the messages of a request behind its first one, as they stand in the JSON."""

    model: str
    render: Callable[[], str]


def _render_turns(count: int, size: int) -> str:
    turns = (
        json.dumps({"role": ("assistant", "user")[at % 2], "content": make_text(size)}) for at in range(count)
    )
    return ",".join(turns)


def _render_one(text: str) -> str:
    return json.dumps({"role": "user", "content": text})


HEAVY_KINDS: Final[Mapping[str, HeavyKind]] = {
    "20 MB": HeavyKind("bench-vast", lambda: _render_turns(5_001, 4_000)),
    "20,000 messages": HeavyKind("bench-near", lambda: _render_turns(19_997, 200)),
    "100,000 messages": HeavyKind("bench-near", lambda: _render_turns(100_001, 15)),
    "compactions": HeavyKind("bench-tight", lambda: _render_turns(401, 1_500)),
    "1 MB of blanks": HeavyKind("bench-tight", lambda: _render_one(" " * 1_000_000)),
    "1 MB of a letter": HeavyKind("bench-tight", lambda: _render_one("a" * 1_000_000)),
    "20 MB counted": HeavyKind("bench-near", lambda: _render_turns(5_001, 4_000)),
}


class _Sender:
    """Sends one kind of request in its thread until it is told to stop."""

    def __init__(self, port: int, name: str, is_over: threading.Event) -> None:
        self._port = port
        self._name = name
        self._is_over = is_over
        kind = HEAVY_KINDS[name]
        self._rest = f',{kind.render()}],"model":"{kind.model}","max_tokens":64}}'.encode()
        self.answers = 0

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        while not self._is_over.is_set():
            self._send_one(connection)
            self.answers += 1

    def _send_one(self, connection: http.client.HTTPConnection) -> None:
        first = json.dumps({"role": "user", "content": f"Task {self._name} {self.answers}: pass the tests."})
        start = b'{"messages":[' + first.encode()
        connection.putrequest("POST", "/v1/chat/completions")
        for name, value in _HEADERS.items():
            connection.putheader(name, value)
        connection.putheader("Authorization", f"Bearer sk-heavy-{self._name}")
        connection.putheader("Content-Length", str(len(start) + len(self._rest)))
        connection.endheaders(start)
        connection.send(self._rest)
        connection.getresponse().read()


def _run(port: int, names: list[str]) -> None:
    is_over = threading.Event()
    senders = [_Sender(port, name, is_over) for name in names]
    for sender in senders:
        threading.Thread(target=sender.run, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()
    is_over.set()
    print(json.dumps({name: sender.answers for name, sender in zip(names, senders, strict=True)}))


if __name__ == "__main__":
    _run(int(sys.argv[1]), sys.argv[2:])
