"""Messages with calls of tools, written as a chat client does, and the same in the other formats."""

import json
from collections.abc import Sequence
from typing import Any

from tests.toy.dialect import Dialect

JSON = dict[str, Any]


def ask(text: str) -> JSON:
    return {"role": "user", "content": text}


def call(number: int, tool: str, arguments: JSON, result: str = "done") -> list[JSON]:
    """A call and its result, as of a chat client."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    called = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]


def edit(number: int, path: str, old: str, new: str) -> list[JSON]:
    """As opencode's tool `edit` does."""
    arguments = {"filePath": path, "oldString": old, "newString": new}
    return call(number, "edit", arguments, "Edit applied successfully.")


def translate(messages: Sequence[JSON], dialect: Dialect) -> list[JSON]:
    """The same messages in another format."""
    if dialect.path == "/chat/completions":
        return list(messages)
    found: list[JSON] = []
    for message in messages:
        calls, result = message.get("tool_calls", ()), message.get("tool_call_id")
        for each in calls:
            name, arguments = each["function"]["name"], each["function"]["arguments"]
            if dialect.path == "/responses":
                item = {"type": "function_call", "call_id": each["id"], "name": name, "arguments": arguments}
                found.append(item)
            else:
                used = {"type": "tool_use", "id": each["id"], "name": name, "input": json.loads(arguments)}
                found.append({"role": "assistant", "content": [used]})
        if result is not None and dialect.path == "/responses":
            found.append({"type": "function_call_output", "call_id": result, "output": message["content"]})
        elif result is not None:
            told = {"type": "tool_result", "tool_use_id": result, "content": message["content"]}
            found.append({"role": "user", "content": [told]})
        elif not calls:
            found.append({"role": message["role"], "content": message["content"]})
    return found


def describe_tools(dialect: Dialect, *names: str) -> list[JSON]:
    schema: JSON = {"type": "object", "properties": {}}
    if dialect.path == "/messages":
        return [{"name": each, "input_schema": schema} for each in names]
    functions: list[JSON] = [{"name": each, "parameters": schema} for each in names]
    if dialect.path == "/responses":
        return [{"type": "function", **each} for each in functions]
    return [{"type": "function", "function": each} for each in functions]
