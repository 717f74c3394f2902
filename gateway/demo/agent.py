"""The demo's agent: it sends its whole history each turn, does what the model asks for, and forgets nothing.

Knows nothing of gateways: it gets a base URL, as every client does.
"""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from gateway.demo.stand_in import MODEL, count_tokens

FILES: Final = 24

_SYSTEM: Final = (
    "You are a careful coding agent. Read the files of the project one after the other with read_file. Say "
    "what you have found before each call. Change nothing."
)
_TASK: Final = (
    "Review the storage layer. Read every file, note one finding for each, and list all findings at the end. "
    "Next file: src/part_01.py"
)
_TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file of the project.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        },
    },
)
_LINE: Final = "    value_{0} = check(load('part_{1:02}', {0}), limit={2})  # as in part {3}\n"
_LINES: Final = 14


@dataclass(frozen=True)
class TurnReport:
    """One request of the agent. tokens: of what it sent, by the model's count. `headers`: in lower case."""

    messages: int
    tokens: int
    status: int
    headers: Mapping[str, str]
    # The model's text, or the message of the error.
    text: str


async def play(base_url: str) -> AsyncIterator[TurnReport]:
    """Works until the task is done, or a request fails."""
    history: list[dict[str, Any]] = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": _TASK},
    ]
    async with aiohttp.ClientSession() as client:
        while True:
            body = {"model": MODEL, "messages": history, "tools": _TOOLS}
            async with client.post(f"{base_url}/chat/completions", json=body) as response:
                status, value = response.status, await response.json()
                headers = {name.lower(): text for name, text in response.headers.items()}
            message = value["choices"][0]["message"] if status == 200 else {}
            text = message.get("content") or value.get("error", {}).get("message") or ""
            yield TurnReport(len(history), count_tokens(body), status, headers, text)
            if "tool_calls" not in message:
                return
            history += [message, *map(_run_tool, message["tool_calls"])]


def _run_tool(call: Mapping[str, Any]) -> dict[str, Any]:
    path = json.loads(call["function"]["arguments"])["path"]
    return {"role": "tool", "tool_call_id": call["id"], "content": read_file(path)}


def read_file(path: str) -> str:
    """A made-up file of some 250 tokens with one finding, and the name of the next file."""
    number = int(path.removeprefix("src/part_").removesuffix(".py"))
    lines = (_LINE.format(n, number, number * 31 + n * 7, max(1, number - n)) for n in range(_LINES))
    ending = f"Next file: src/part_{number + 1:02}.py" if number < FILES else "This was the last file."
    return f"# {path}\n{''.join(lines)}{_make_finding(number)}\n{ending}"


def find_missing(text: str) -> list[str]:
    """The findings that a text lacks."""
    return [finding for finding in map(_make_finding, range(1, FILES + 1)) if finding not in text]


def _make_finding(number: int) -> str:
    return f"Finding {number}: limit {number * 31} of part {number} is written twice"
