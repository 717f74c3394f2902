"""Which Messages requests a summary can ride on, and how they are sent."""

import json
from typing import Any

import pytest

from gateway.wire.formats.messages.riding import ride
from tests.wire.test_riding import ASKED

_TOOLS = [{"name": "look", "input_schema": {}, "cache_control": {"type": "ephemeral"}}]
_MESSAGES = [{"role": "user", "content": [{"type": "text", "text": "Look."}]}]
_HOSTED = ("code_execution_20250825", "web_search_20250305", "web_fetch_20250910", "mcp_toolset")
_CLIENT_RUN = ("custom", "bash_20250124", "text_editor_20250728", "computer_20250124", "memory_20250818")
_QUESTION = {"role": "user", "content": "Sum it up."}


def send(**fields: Any) -> dict[str, Any] | None:
    body = {"model": "toy", "max_tokens": 4_000, "messages": _MESSAGES} | fields
    ridden = ride(json.dumps(body).encode(), ASKED)
    return json.loads(ridden) if ridden is not None else None


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": _TOOLS},
        {"tools": [{"type": kind, "name": "x"} for kind in _CLIENT_RUN]},
        {"tools": _TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
    ],
)
def test_a_question_is_added_and_all_else_stays(fields: dict[str, Any]) -> None:
    body = {"model": "toy", "max_tokens": 4_000, "messages": [*_MESSAGES, _QUESTION]}
    assert send(**fields) == body | fields


def test_bytes_of_the_prompt_stay() -> None:
    data = b'{"messages":[ {"role":"user","content":"\\u00e9"}\n],"tools":[ {} ],"max_tokens":2000}'
    assert ride(data, ASKED) == data.replace(b"}\n]", b'},{"role":"user","content":"Sum it up."}\n]')


def test_the_limit_stays_above_the_thinking_budget() -> None:
    sent = send(max_tokens=2_000, thinking={"type": "enabled", "budget_tokens": 1_500})
    assert sent is not None and sent["max_tokens"] == 2_500


def test_a_budget_that_leaves_no_room_for_a_summary_is_not_ridden() -> None:
    thinking = {"type": "enabled", "budget_tokens": 49_500}
    assert send(thinking=thinking) is None
    # Unless it is the client's own: few thoughts take all of it.
    sent = send(max_tokens=49_501, thinking=thinking)
    assert sent is not None and sent["max_tokens"] == 49_501
    assert send(max_tokens=2_000, thinking={"type": "enabled", "budget_tokens": 50_000}) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "tool", "name": "look"}},
        {"stop_sequences": ["END"]},
        {"output_format": {"type": "json_schema"}},
        {"output_config": {"format": {"type": "json_schema"}}},
        {"mcp_servers": [{"type": "url", "url": "https://x.example"}]},
        {"container": "c"},
        {"thread": {"type": "create"}},
        *({"tools": [*_TOOLS, {"type": kind, "name": "x"}]} for kind in _HOSTED),
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"messages": [*_MESSAGES, {"role": "assistant", "content": "I"}]},
    ],
)
def test_what_may_act_or_end_otherwise_is_not_ridden(fields: dict[str, Any]) -> None:
    assert send(**fields) is None
