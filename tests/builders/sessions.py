"""Sessions that edit files: the messages of a chat client, and a keeper over stores in memory."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway.bounds.lanes import Lanes
from gateway.conversations.turn import Turn
from gateway.sessions.diffs import DiffStore
from gateway.sessions.keeper import SessionKeeper
from gateway.store import Store
from gateway.store.keys import make_tag
from tests.builders.chat import JSON, make_turn, read, render
from tests.builders.state import make_store
from tests.store.clock import Clock

TAG = make_tag("t")


@dataclass(frozen=True, kw_only=True)
class SessionParts:
    store: Store
    originals: Store
    diffs: DiffStore
    keeper: SessionKeeper
    clock: Clock


@asynccontextmanager
async def keeping_sessions(
    store: Store | None = None, originals: Store | None = None, max_bytes: int = 1 << 20
) -> AsyncIterator[SessionParts]:
    store = store if store is not None else await make_store()
    originals = originals if originals is not None else await make_store()
    lanes, clock, diffs = Lanes(), Clock(), DiffStore(originals)
    keeper = SessionKeeper(store, diffs, lanes, 60.0, max_bytes, clock)
    yield SessionParts(store=store, originals=originals, diffs=diffs, keeper=keeper, clock=clock)
    await keeper.finish()
    lanes.close()


def ask(text: str) -> JSON:
    return {"role": "user", "content": text}


def call(number: int, tool: str, arguments: JSON, result: str = "done") -> list[JSON]:
    """A call and its result."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    called: JSON = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]


def edit(number: int, path: str, old: str, new: str) -> list[JSON]:
    """As opencode's tool `edit` does."""
    arguments: JSON = {"filePath": path, "oldString": old, "newString": new}
    return call(number, "edit", arguments, "Edit applied successfully.")


def turn_with(messages: list[JSON], *, tenant: str = "t", **fields: Any) -> Turn:
    return make_turn(read(render(messages), tenant), **fields)
