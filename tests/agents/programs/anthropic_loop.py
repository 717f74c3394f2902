"""An agent loop by hand on the Anthropic SDK.

anthropic_loop.py sync|async|stream|async-stream all|newest-messages PROMPT...
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from anthropic import Anthropic, AsyncAnthropic

_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_READ = {"name": "read_note", "description": "Read one file.", "input_schema": _SCHEMA}
_ENDPOINT = {"base_url": os.environ["GATEWAY_URL"], "api_key": os.environ["GATEWAY_KEY"]}
_OUTPUT_TOKENS = 2_000
_KEPT_MESSAGES = 40


def _envelope(messages: list[Any]) -> dict[str, Any]:
    return {
        "model": os.environ["GATEWAY_MODEL"],
        "max_tokens": _OUTPUT_TOKENS,
        "system": "You read notes and report what they say.",
        "messages": messages,
        "tools": [_READ],
    }


def _results(message: Any) -> list[dict[str, str]]:
    return [
        {
            "type": "tool_result",
            "tool_use_id": block.id,
            "content": Path(block.input["path"]).read_text("utf-8"),
        }
        for block in message.content
        if block.type == "tool_use"
    ]


async def _ask(mode: str, messages: list[Any]) -> Any:
    envelope = _envelope(messages)
    match mode:
        case "sync":
            return Anthropic(**_ENDPOINT).messages.create(**envelope)
        case "async":
            return await AsyncAnthropic(**_ENDPOINT).messages.create(**envelope)
        case "stream":
            with Anthropic(**_ENDPOINT).messages.stream(**envelope) as events:
                return events.get_final_message()
        case _:
            async with AsyncAnthropic(**_ENDPOINT).messages.stream(**envelope) as events:
                return await events.get_final_message()


def _kept(what: str, messages: list[Any]) -> list[Any]:
    """What is sent of the history. It begins with a prompt of the user."""
    kept = messages[-_KEPT_MESSAGES:] if what == "newest-messages" else messages
    while not isinstance(kept[0]["content"], str):
        kept = kept[1:]
    return kept


async def main(mode: str, what: str, prompts: list[str]) -> None:
    messages: list[Any] = []
    for prompt in prompts:
        messages.append({"role": "user", "content": prompt})
        while True:
            message = await _ask(mode, _kept(what, messages))
            messages.append({"role": "assistant", "content": message.model_dump()["content"]})
            results = _results(message)
            if not results:
                break
            messages.append({"role": "user", "content": results})
        print("".join(block.text for block in message.content if block.type == "text"))


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
