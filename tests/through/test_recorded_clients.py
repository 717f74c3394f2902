"""Recorded requests of real clients, in their order and with their headers, through one gateway.

Below the thresholds the bytes of both directions are unchanged, and each conversation keeps its id.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio

from tests.shared_data import SHARED
from tests.through.test_usage_option import without_extra
from tests.toy.counting import TokenCounter
from tests.toy.delivery import RawAnswer
from tests.toy.dialect import Asked
from tests.toy.dialects import find_dialect
from tests.toy.memory import Memory
from tests.toy.product import Product, serve
from tests.toy.raw import (
    Got,
    RawUpstream,
    Received,
    connecting,
    render_answer,
    render_chunks,
    writing,
)
from tests.toy.raw import render_request as render
from tests.toy.recorded import CAPTURES, requires_cases
from tests.toy.reply import Reply, ToolCall

pytestmark = pytest.mark.asyncio(loop_scope="module")

FRAMING: Final = ("host", "content-length", "connection", "transfer-encoding")
OPTION: Final = b',"stream_options":{"include_usage":true}'
_CALL: Final = ToolCall(id="call_1", name="read", arguments='{"path":"a.py"}')
# One letter for each request, the same for those of one conversation. Two sessions that say the same are two
# conversations where the client names them; otherwise only what comes then tells them apart.
CONVERSATIONS: Final = {
    "aisdk-chat": "AAAA",
    "aisdk-responses": "AAAA",
    "claude-code": "AAAAAAAAAABBAA",
    "cline": "AAA",
    "codex": "AAAAAAAA",
    "codex-sub": "AAB",
    "continue": "AAAAAA",
    "long-opencode": "ABBBBBBBBBBB",
    "opencode-chat": "ABBBBBBBBBCCBDEE",
    "opencode-ctx": "ABBCDDD",
    "opencode-overflow": "ABCDEDEDEDEDED",
    "opencode-responses": "ABBBBBB",
    "py-agents": "AAAAAABBBBBB",
    "py-lc": "AAAAABBBCCCC",
    "py-pyd": "AAAABBBB",
    "py-smol": "AAABAAAC",
    "qwen": "AAAAAAAAAABBAAAC",
}
# Clients that can be recognized by their headers. The recordings have fillers in place of texts.
AGENTS: Final = {"claude-code": "B", "codex-sub": "B", "opencode-chat": "C"}


@dataclass(frozen=True)
class Capture:
    """following: the body of the request after it, in the same scenario."""

    path: str
    headers: list[tuple[str, str]]
    document: dict[str, Any]
    following: dict[str, Any]
    calls: bool

    @property
    def body(self) -> bytes:
        return json.dumps(self.document, separators=(",", ":"), ensure_ascii=False).encode()

    @property
    def lets_us_ask(self) -> bool:
        """Streams of chat without a request for usage; only there the gateway requests it."""
        asked = (self.document.get("stream_options") or {}).get("include_usage")
        return self.path.endswith("/chat/completions") and self.document.get("stream") is True and not asked

    def answer(self, asked_for_usage: bool) -> RawAnswer:
        """A response in the format; the next request refers to it by this id."""
        dialect = find_dialect(self.path)
        assert dialect is not None
        options = {"stream_options": {"include_usage": True}} if asked_for_usage else {}
        asked = Asked(
            request=self.document | options,
            number=1,
            prompt_tokens=len(self.body) // 4,
            counter=TokenCounter(1.0),
            memory=Memory(),
        )
        reply = Reply(tool_calls=(_CALL,) if self.calls else (), thinking="Hm.", mark="0")
        answer = dialect.answer(asked, reply)
        pieces = b"\0".join(answer.pieces)
        for item in self._references():
            pieces = pieces.replace(item.partition("_")[0].encode() + b"_0", item.encode())
        return RawAnswer(headers=answer.headers, pieces=tuple(pieces.split(b"\0")))

    def _references(self) -> list[str]:
        known = self.document.get("input") or []
        items = (self.following.get("input") or [])[len(known) :]
        return [item["id"] for item in items if item.get("type") == "item_reference"]


def load_scenario(name: str) -> list[Capture]:
    """Gives each scenario a key of its own in place of the recorded one, so that they stay apart."""
    files = sorted((SHARED / "data" / "captures" / name).glob("*.json"))
    recorded: list[dict[str, Any]] = [json.loads(file.read_text("utf-8")) for file in files]
    last: dict[str, Any] = {"body": {}}
    return [
        Capture(
            path=one["path"],
            headers=[(key, value.replace("sk-fake", f"sk-{name}")) for key, value in one["headers"]],
            document=one["body"],
            following=after["body"],
            calls=one.get("reply", {}).get("tool", False),
        )
        for one, after in zip(recorded, [*recorded[1:], last], strict=True)
    ]


@dataclass(frozen=True)
class Room:
    upstream: RawUpstream
    gateway: Product

    async def purpose(self, conversation: str | None) -> str:
        """As operators see it."""
        url = f"http://127.0.0.1:{self.gateway.admin_port}/api/conversations/{conversation}"
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            return str((await answer.json())["purpose"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def room() -> AsyncIterator[Room]:
    async with RawUpstream() as upstream:
        yaml = (
            f'store: "memory:"\nadmin: {{port: 0}}\n'
            f'upstreams:\n  default: {{base_url: "{upstream.base_url}", discover: false}}\n'
            'models:\n  - {match: "*", context: 200000}\n'
        )
        async with serve(yaml) as gateway:
            yield Room(upstream, gateway)


def render_raw(answer: RawAnswer, is_streamed: bool) -> list[bytes]:
    if is_streamed:
        return render_chunks(answer.pieces, answer.headers)
    return [render_answer(answer.body, answer.headers)]


async def play(room: Room, name: str) -> list[str | None]:
    """The ids of the conversations. Apart from what is checked here, nothing has changed."""
    named = []
    async with connecting(room.gateway.port) as connection:
        for capture in load_scenario(name):
            answer = capture.answer(capture.lets_us_ask)
            room.upstream.script = writing(*render_raw(answer, capture.document.get("stream") is True))
            headers = [pair for pair in capture.headers if pair[0].lower() not in FRAMING]
            got = await connection.ask(render(capture.path, capture.body, headers))
            check_request(room.upstream.received[-1], capture, headers)
            check_answer(got, answer, capture)
            named.append(got.own("conversation"))
    return named


def check_request(seen: Received, capture: Capture, headers: list[tuple[str, str]]) -> None:
    expected = tuple((name.encode(), value.encode()) for name, value in headers)
    assert seen.head.line == f"POST {capture.path} HTTP/1.1".encode()
    if not capture.lets_us_ask:
        assert seen.head.without(*FRAMING) == expected
        assert seen.body == capture.body
        return
    # We read along, so it must not be compressed.
    kept = [pair for pair in expected if pair[0].lower() != b"accept-encoding"]
    assert sorted(seen.head.without(*FRAMING, "accept-encoding")) == sorted(kept)
    assert seen.head.values("accept-encoding") == [b"identity"]
    assert seen.body.count(OPTION) == 1
    assert seen.body.replace(OPTION, b"") == capture.body


def check_answer(got: Got, answer: RawAnswer, capture: Capture) -> None:
    expected = without_extra(answer.body) if capture.lets_us_ask else answer.body
    assert (got.status, got.is_whole, got.body) == (200, True, expected)
    assert got.own("plan") == "passthrough"
    assert (len(expected) < len(answer.body)) == capture.lets_us_ask


@requires_cases(CAPTURES, "captured requests")
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_recorded_session_passes_and_keeps_its_name(room: Room, name: str) -> None:
    named = await play(room, name)
    letters: dict[str | None, str] = {}
    for one in named:
        letters.setdefault(one, chr(ord("A") + len(letters)))
    assert "".join(letters[one] for one in named) == CONVERSATIONS[name]
    agents = [letter for one, letter in letters.items() if await room.purpose(one) == "agent"]
    assert agents == list(AGENTS.get(name, ""))


@requires_cases(CAPTURES, "captured requests")
async def test_no_recorded_session_is_left_out() -> None:
    folders = [path.name for path in sorted((SHARED / "data" / "captures").iterdir()) if path.is_dir()]
    assert folders == list(CONVERSATIONS)
    assert sum(map(len, CONVERSATIONS.values())) == CAPTURES
