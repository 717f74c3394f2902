"""The nine conversations: seeded agents on three windows, and the six largest recorded sessions on 64K."""

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.replay.recordings import CHAT_PATH, History, RecordedRequest
from gateway.wire.body import Slice
from tests.toy.agent import make_session
from tests.toy.material import make_prose

_SHARED: Final = Path(os.environ.get("GATEWAY_SHARED") or Path(__file__).resolve().parents[3] / "shared")
MODEL: Final = "bench-model"
_SEED: Final = 20
_RECORDED_WINDOW: Final = 65_536
# Recorded sessions come without the system prompt and the tools. Both take 8,000 to 20,000 tokens of a coding
# agent's requests.
_SYSTEM_TOKENS: Final = 8_000
_MARK: Final = {"cache_control": {"type": "ephemeral"}}

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Agent:
    """window: of the model. A turn adds about so many tokens."""

    window: int
    turns: int
    turn_tokens: int


# As in tests/through: larger windows go with larger turns. Each fills its window several times.
_AGENTS: Final = (
    Agent(window=32_768, turns=150, turn_tokens=750),
    Agent(window=131_072, turns=250, turn_tokens=1_500),
    Agent(window=200_000, turns=300, turn_tokens=2_500),
)
_SMALL_AGENTS: Final = (Agent(window=16_384, turns=40, turn_tokens=750),)
_RECORDED: Final = (
    "concat-long/open-c",
    "entire-claude-code/cd-95adddad32-0",
    "pi-mono/large-session",
    "entire-claude-code/18-4069756ffc-0",
    "spotter-claude-code/ae4a77f8-aedd-4bc1-888f-c94edc91af04",
    "entire-claude-code/23-72de7ea2ff-0",
)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A conversation."""

    name: str
    window: int
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    is_recorded: bool = False

    def list_requests(self, *, is_marked: bool) -> Iterator[RecordedRequest]:
        """One before each reply. is_marked: with `cache_control` on the system prompt and on the newest
        message that has a text, as clients of Anthropic's models set it.
        """
        first, *others = self.messages
        if is_marked and first["role"] == "system":
            first = _mark(first) or first
        messages = [first, *others]
        raws = [json.dumps(message).encode() for message in messages]
        history = History(CHAT_PATH)
        for message, raw in zip(messages, raws, strict=True):
            history.add(raw, is_reply=message["role"] == "assistant")
        history.finish()
        tools = f'"tools":{json.dumps(self.tools)},' if self.tools else ""
        data, places = bytearray(f'{{"model":"{MODEL}",{tools}"messages":['.encode()), list[Slice]()
        for cut in history.cuts:
            for raw in raws[len(places) : cut.end]:
                data += b"," if places else b""
                places.append(Slice(len(data), len(data) + len(raw)))
                data += raw
            body = _with_mark(data, places, messages) if is_marked else bytes(data)
            yield RecordedRequest(path=CHAT_PATH, start=bytes(body) + b"]}", reply=cut.reply)


def _with_mark(data: bytearray, places: Sequence[Slice], messages: Sequence[Message]) -> bytes:
    for place, message in zip(reversed(places), reversed(messages[: len(places)]), strict=True):
        marked = _mark(message)
        if marked is not None:
            return bytes(data[: place.start]) + json.dumps(marked).encode() + data[place.end :]
    return bytes(data)


def _mark(message: Message) -> Message | None:
    """None without a text, which can have no mark."""
    content = message.get("content")
    if isinstance(content, str) and content:
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        return None
    return {**message, "content": [*content[:-1], {**content[-1], **_MARK}]}


def list_workloads() -> list[Workload]:
    return [*map(_make_agent, _AGENTS), *_list_recorded()]


def list_small_workloads() -> list[Workload]:
    return [*map(_make_agent, _SMALL_AGENTS)]


def _make_agent(agent: Agent) -> Workload:
    session = make_session(agent.turns, _SEED, "one_user", agent.turn_tokens)
    turns = [message for turn in session.turns for message in (turn.assistant, *turn.followers)]
    messages = [*session.leading, *session.opening, *turns]
    return Workload(
        name=f"agent, {agent.window // 1_000}K",
        window=agent.window,
        messages=[dict(message) for message in messages],
        tools=session.tools,
    )


def _list_recorded() -> Iterator[Workload]:
    """None where the recorded sessions are absent."""
    system = f"You are a coding agent. {make_prose(random.Random(_SEED), _SYSTEM_TOKENS)}"
    for name in _RECORDED:
        path = _SHARED / "data" / "transcripts" / f"{name}.json"
        if path.exists():
            value = json.loads(path.read_text("utf-8"))
            said = [each for each in value["messages"] if each["role"] != "system"]
            yield Workload(
                name=name.rsplit("/", 1)[-1][:13],
                window=_RECORDED_WINDOW,
                messages=[{"role": "system", "content": system}, *said],
                tools=value.get("tools") or (),
                is_recorded=True,
            )
