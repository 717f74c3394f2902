"""An agent loop by hand on the OpenAI SDK, as a front end would write it.

openai_loop.py sync|async|stream|async-stream all|newest-messages|newest-results PROMPT...
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAI

_PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_READ = {"name": "read_note", "description": "Read one file.", "parameters": _PARAMETERS}
_SYSTEM = {"role": "system", "content": "You read notes and report what they say."}
# Without an address in the code, OPENAI_BASE_URL holds.
_ENDPOINT = {"base_url": os.environ.get("GATEWAY_URL"), "api_key": os.environ["GATEWAY_KEY"]}

_KEPT_MESSAGES = 40
_KEPT_STEPS = 20


def _envelope(messages: list[Any]) -> dict[str, Any]:
    tools = [{"type": "function", "function": _READ}]
    return {"model": os.environ["GATEWAY_MODEL"], "messages": messages, "tools": tools}


def _results(message: Any) -> list[dict[str, str]]:
    calls = message.tool_calls or []
    texts = [Path(json.loads(call.function.arguments)["path"]).read_text("utf-8") for call in calls]
    return [
        {"role": "tool", "tool_call_id": call.id, "content": text}
        for call, text in zip(calls, texts, strict=True)
    ]


async def _ask(mode: str, messages: list[Any]) -> Any:
    envelope = _envelope(messages)
    match mode:
        case "sync":
            return OpenAI(**_ENDPOINT).chat.completions.create(**envelope).choices[0].message
        case "async":
            answer = await AsyncOpenAI(**_ENDPOINT).chat.completions.create(**envelope)
            return answer.choices[0].message
        case "stream":
            with OpenAI(**_ENDPOINT).chat.completions.stream(**envelope) as events:
                return events.get_final_completion().choices[0].message
        case _:
            async with AsyncOpenAI(**_ENDPOINT).chat.completions.stream(**envelope) as events:
                return (await events.get_final_completion()).choices[0].message


def _kept(what: str, messages: list[Any]) -> list[Any]:
    """What is sent of the history. The system prompt always is, and no call is without its results."""
    match what:
        case "newest-messages":
            system, newest = messages[:1], messages[1:][-_KEPT_MESSAGES:]
            while newest[0]["role"] == "tool":
                del newest[0]
            return system + newest
        case "newest-results":
            steps = [message for message in messages if message.get("tool_calls")]
            dropped = {name for step in steps[:-_KEPT_STEPS] for name in _call_ids(step)}
            return [message for message in messages if not dropped.intersection(_call_ids(message))]
        case _:
            return messages


def _call_ids(message: dict[str, Any]) -> list[str]:
    """The calls that a message makes or answers."""
    if message["role"] == "tool":
        return [message["tool_call_id"]]
    return [call["id"] for call in message.get("tool_calls", ())]


async def main(mode: str, what: str, prompts: list[str]) -> None:
    messages: list[Any] = [_SYSTEM]
    for prompt in prompts:
        messages.append({"role": "user", "content": prompt})
        while True:
            message = await _ask(mode, _kept(what, messages))
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            results = _results(message)
            if not results:
                break
            messages += results
        print(message.content)


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
