"""How a scripted model reads a file with the tools that a client offers.

It goes by the schemas in the request, in any of the three APIs.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.toy.reply import ToolCall

Request = Mapping[str, object]
Schema = Mapping[str, object]
_COMMANDS = ("command", "cmd", "commands")
_PATHS = ("file_path", "filePath", "path", "files")
# Tools that some clients want called at the end of a turn, and their argument for the last words.
_ENDINGS: Mapping[str, str | None] = {"final_answer": "answer", "complete": None}
_FILLERS: Mapping[object, object] = {"boolean": False, "integer": 1, "number": 1, "array": [], "object": {}}


@dataclass(frozen=True)
class Tool:
    """One that can show a file: `argument` takes its path, or, for a shell, a command that prints it.

    It may take a list of them.
    """

    name: str
    argument: str
    schema: Schema

    @property
    def is_shell(self) -> bool:
        return self.argument in _COMMANDS

    def read(self, call_id: str, path: str) -> ToolCall:
        return self.run(call_id, f"cat {path}" if self.is_shell else path)

    def run(self, call_id: str, wish: str) -> ToolCall:
        arguments = {**self._required(), self.argument: self._fit(wish)}
        return ToolCall(id=call_id, name=self.name, arguments=json.dumps(arguments))

    def _fit(self, wish: str) -> object:
        """The wish as the schema wants it: alone, in a list, or as the path of an object in a list."""
        match _properties(self.schema)[self.argument]:
            case {"type": "array", "items": {"type": "object"}}:
                return [{"path": wish}]
            case {"type": "array"}:
                return [wish]
            case _:
                return wish

    def _required(self) -> dict[str, object]:
        """A harmless value for every other required field of the schema."""
        properties, required = _properties(self.schema), self.schema.get("required")
        if not isinstance(required, list):
            return {}
        return {name: _FILLERS.get(properties.get(name, {}).get("type"), "Read notes") for name in required}


def find_tools(request: Request) -> tuple[Tool, ...]:
    """Shells and readers among the request's tools, in their order."""
    return tuple(_usable(request))


def find_names(request: Request) -> tuple[str, ...]:
    """Of all tools that are offered."""
    return tuple(_read_tool(tool)[0] for tool in _offered(request))


def find_ending(request: Request, call_id: str, words: str) -> ToolCall | None:
    """A call of the tool that ends a turn, with the last words, if the client has such a tool."""
    for name, _ in map(_read_tool, _offered(request)):
        if name in _ENDINGS:
            argument = _ENDINGS[name]
            said = {} if argument is None else {argument: words}
            return ToolCall(id=call_id, name=name, arguments=json.dumps(said))
    return None


def _usable(request: Request) -> Iterator[Tool]:
    for tool in _offered(request):
        name, schema = _read_tool(tool)
        names = _COMMANDS + (_PATHS if "read" in name.lower() else ())
        argument = next((candidate for candidate in names if candidate in _properties(schema)), None)
        if name and argument is not None and not _starts_agent(schema):
            yield Tool(name, argument, schema)


def _offered(request: Request) -> list[object]:
    tools = request.get("tools")
    return tools if isinstance(tools, list) else []


def _read_tool(tool: object) -> tuple[str, Schema]:
    """Name and schema of a tool. Chat nests both in `function`; Messages has `input_schema`."""
    match tool:
        case {"function": {"name": str(name), "parameters": dict(schema)}}:
            return name, schema
        case {"name": str(name), "parameters": dict(schema)} | {
            "name": str(name),
            "input_schema": dict(schema),
        }:
            return name, schema
        case _:
            return "", {}


def _starts_agent(schema: Schema) -> bool:
    """opencode's tool for that takes a command, too, and only remembers it."""
    return "prompt" in _properties(schema)


def _properties(schema: Schema) -> dict[str, Schema]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}
