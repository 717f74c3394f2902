"""A session of a chat client that edits files, and what an admin port may say of a conversation."""

from collections.abc import Sequence
from typing import Any, Final

from tests.toy.house import House
from tests.toy.tool_calls import ask, call, edit

JSON = dict[str, Any]
TASK: Final = "Fix the parser of dates"


SESSION: Final[Sequence[JSON]] = (
    ask(TASK),
    *edit(1, "/a.py", "one\n", "two\nthree\n"),
    *call(2, "bash", {"command": "make test"}, "ok"),
    *edit(3, "/b.py", "x\n", "y\n"),
    *edit(4, "/a.py", "two\n", "2\n"),
)
_TOOLS: Final = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}]


async def play_work(house: House, messages: Sequence[JSON] = SESSION, **headers: str) -> str:
    """A request at the end of each user message and result. The id of the conversation."""
    identity = ""
    for end, message in enumerate(messages, 1):
        if message["role"] != "assistant":
            body = {"model": "toy-model", "messages": list(messages[:end]), "tools": _TOOLS}
            answer = await house.post("/chat/completions", body, **headers)
            assert answer.status == 200, answer.body
            identity = answer.header("x-gateway-conversation") or ""
    await house.at_rest()
    return identity


_NO_BREAKS: Final = {"compaction": 0, "pruning": 0, "edit": 0, "history": 0}


def make_economics(**changes: object) -> JSON:
    """What a conversation cost; by itself nothing is known."""
    breaks: object = changes.pop("breaks", {})
    assert isinstance(breaks, dict)
    return {
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "cache_write_tokens": 0,
        "output_tokens": 0,
        "breaks": _NO_BREAKS | breaks,
        "summary_calls": 0,
        "riding_calls": 0,
        "riding_usd": None,
        "unused_summaries": 0,
        "compared_requests": 0,
        "with_usd": None,
        "without_usd": None,
        "died": 0,
        **changes,
    }


def make_row(identity: str = "0123456789abcdef", **changes: object) -> JSON:
    """As the list of conversations has it."""
    return {
        "id": identity,
        "parent": None,
        "tenant": "team-a",
        "session": None,
        "purpose": "main",
        "model": "toy-1",
        "upstream": "default",
        "first_seen": "2026-11-23T11:59:00.000+00:00",
        "last_seen": "2026-11-23T12:00:00.000+00:00",
        "requests": 3,
        "window": 16_000,
        "soft": 10_000,
        "hard": 12_000,
        "plan": "pivot",
        "received_tokens": 20_000,
        "sent_tokens": 8_000,
        "prompt_tokens": 8_000,
        "output_tokens": 100,
        "compactions": 1,
        "prunings": 0,
        "cache_breaks": 1,
        "total_received_tokens": 40_000,
        "total_sent_tokens": 28_000,
        "saved_tokens": 12_000,
        "saved_usd": 0.25,
        "spent_usd": 1.5,
        "summary_tokens": 5_000,
        "summary_usd": None,
        "pivot": None,
        "title": None,
        "economics": make_economics(),
        "died_at": None,
        **changes,
    }


def make_page(**changes: object) -> JSON:
    """As the page of one conversation has it."""
    more: JSON = {
        "messages": 9,
        "growth_tokens": 100,
        "prune_batches": 0,
        "body_in_memory": True,
        "lines": None,
        "texts": {"allowed": False, "reason": "set admin.token"},
    }
    return make_row(**(more | changes))


def make_request(**changes: object) -> JSON:
    return {
        "at": "2026-11-23T11:00:00.000+00:00",
        "messages": 5,
        "received": 20_000,
        "sent": 8_000,
        "prompt_tokens": 8_000,
        "cached_tokens": None,
        "output_tokens": 10,
        "plan": "pivot",
        "soft": 10_000,
        "hard": 12_000,
        "change": None,
        **changes,
    }


def make_summary(**changes: object) -> JSON:
    return {
        "key": "k",
        "kind": "summary",
        "covers": 7,
        "trigger": "auto",
        "reason": "soft_threshold",
        "created": "2026-11-23T11:00:00+00:00",
        "model": "toy-1",
        "calls": 1,
        "riding_calls": 0,
        "seconds": 1.0,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 10,
        "usd": 0.01,
        "tokens": 900,
        "saved_tokens": 5_000,
        "state": "in_use",
        "in_use": True,
        "version": 1,
        "text": None,
        "framing": None,
        "recalled": None,
        "versions": [],
        **changes,
    }
