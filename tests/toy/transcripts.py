"""The recorded sessions of the shared data, as requests of a client, and small transcripts like them.

A request is `messages` up to an assistant message. An assistant message directly after another one belongs
to the same turn.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.shared_data import SHARED
from tests.toy.agent import Message, Session, Turn

_LARGE = frozenset({"size_L", "size_XL"})
# Most transcripts have no system prompt and some no tools; a request with `tool` messages needs them.
_SYSTEM: Message = {"role": "system", "content": "You are a coding agent. Work on the task until it is done."}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Parts of a transcript to leave out; None: keep all. Texts above `text_chars` lose their middle."""

    messages: int | None = None
    text_chars: int | None = None


WHOLE = Limits()


def find_large() -> list[str]:
    """Files flagged large, relative to the transcripts folder."""
    manifest = json.loads((SHARED / "data" / "transcripts" / "MANIFEST.json").read_text("utf-8"))
    return [entry["file"] for entry in manifest["entries"] if _LARGE & set(entry["flags"])]


def count_bytes(file: str) -> int:
    return (SHARED / "data" / "transcripts" / file).stat().st_size


def load_transcript(file: str, limits: Limits = WHOLE) -> Session:
    recorded = json.loads((SHARED / "data" / "transcripts" / file).read_text("utf-8"))
    messages = [_within(message, limits) for message in recorded["messages"][: limits.messages]]
    return make_session_of(file, messages, recorded.get("tools") or ())


def make_session_of(name: str, messages: Sequence[Message], tools: Sequence[Message]) -> Session:
    """Any list of messages as a session."""
    leading = [m for m in messages[:1] if m.get("role") in {"system", "developer"}]
    rest = messages[len(leading) :]
    replies = [i for i, message in enumerate(rest) if _is_reply(message)]
    starts = [i for i in replies if i == 0 or not _is_reply(rest[i - 1])]
    turns = tuple(_turn(rest[start:end]) for start, end in pairwise([*starts, len(rest)]))
    return Session(
        name=name,
        leading=tuple(leading) or (_SYSTEM,),
        tools=tuple(tools) or _make_tools(rest),
        opening=tuple(rest[: starts[0]] if starts else rest),
        turns=turns,
    )


def _is_reply(message: Message) -> bool:
    return message.get("role") == "assistant"


def _turn(messages: Sequence[Message]) -> Turn:
    return Turn(messages[0], tuple(messages[1:]))


def _make_tools(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Schemas for the called tools, if the transcript has no tools."""
    called = [call for m in messages if isinstance(calls := m.get("tool_calls"), list) for call in calls]
    names = dict.fromkeys(call["function"]["name"] for call in called)
    return tuple(
        {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
        for name in names
    )


def _within(message: Message, limits: Limits) -> Message:
    content, limit = message.get("content"), limits.text_chars
    if limit is None or not isinstance(content, str) or len(content) <= limit:
        return message
    half = limit // 2
    notice = f"\n[… {len(content) - 2 * half} characters cut …]\n"
    return {**message, "content": content[:half] + notice + content[-half:]}


MODEL = "sample-model"


def make_messages(turns: int, chars: int = 2_000) -> list[dict[str, Any]]:
    """A task, and so many turns of one call with a result of so many characters."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Port the storage layer."}]
    for turn in range(turns):
        function = {"name": "read_file", "arguments": json.dumps({"path": f"/src/{turn}.py"})}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        words = f"line {turn} of a file, read again. "
        messages += [
            {"role": "assistant", "content": f"Reading {turn}.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": words * (chars // len(words))},
        ]
    return messages


def make_transcript(turns: int, chars: int = 2_000, **more: object) -> dict[str, Any]:
    return {"messages": make_messages(turns, chars), "model": MODEL, "usage_by_assistant": [], **more}
