"""The task of every agent: read some notes, file by file, over several turns of a user.

An errand plays the model. It counts its own replies, so it does not depend on how much of the history it
still gets. It reads with the tools that a client offers, and goes by their schemas, in any of the three APIs.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.toy.material import KINDS, make_fact, make_prose, make_tool_text
from tests.toy.reply import Reply, ToolCall

Request = Mapping[str, object]
Schema = Mapping[str, object]
_COMMANDS = ("command", "cmd", "commands")
_PATHS = ("file_path", "filePath", "path", "files")
# Tools that some clients want called at the end of a turn, and their argument for the last words.
_ENDINGS: Mapping[str, str | None] = {"final_answer": "answer", "complete": None}
_FILLERS: Mapping[object, object] = {"boolean": False, "integer": 1, "number": 1, "array": [], "object": {}}
# Every so many steps the model calls two tools at once.
_PARALLEL_EVERY = 5
# The file that a client without tools lets the model write.
REPORT = "report.txt"
_TITLE = Reply(text="Reading notes")


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


@dataclass(frozen=True, kw_only=True)
class Size:
    """turns: prompts of the user; steps: replies with a tool call in each turn, 0 for a client without tools.

    Tokens at the toy's bias 1.0.
    """

    turns: int
    steps: int
    file_tokens: int
    reply_tokens: int


class Errand:
    """`reply` is what the toy answers. After the last words of a turn the next one begins.

    last_command: what a client wants to be called in place of a last word.
    """

    def __init__(self, folder: Path, size: Size, last_command: str | None = None) -> None:
        self.size = size
        self.folder = folder
        self.last_command = last_command
        self.rng = random.Random(7)
        self.task = make_fact(self.rng)
        notes = size.turns * size.steps + 1
        self._notes = tuple(make_fact(self.rng) for _ in range(notes))
        # All replies but titles, in order.
        self.replies: list[Reply] = []
        self._step = 0
        self._turn = 0

    @property
    def prompts(self) -> Sequence[str]:
        """The prompts of the user, one per turn. The first holds a fact that must never get lost."""
        first = (
            f"Read the notes in {self.folder}, file by file, and report. The task's number is {self.task}."
        )
        later = "Go on with the next notes, and report again. This is part {}."
        return (first, *(later.format(turn + 1) for turn in range(1, self.size.turns)))

    @property
    def facts(self) -> Sequence[str]:
        """What the model must still know: the task's number, and one of each note that it has read."""
        called = "".join(call.arguments for reply in self.replies for call in reply.tool_calls)
        read = [fact for number, fact in enumerate(self._notes) if self._path(number).name in called]
        return (self.task, *read)

    def goodbye(self, turn: int) -> str:
        """The last words of a turn; a client that has come to its end has shown them."""
        return f"Part {turn + 1} of the notes is read."

    def write_notes(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        rng = random.Random(11)
        for number, fact in enumerate(self._notes):
            text = make_tool_text(rng, KINDS[number % len(KINDS)], self.size.file_tokens)
            self._path(number).write_text(f"{fact}\n{text}", "utf-8")

    def is_side_call(self, request: Request) -> bool:
        """A title, a suggestion: a client with tools asks them without.

        A request that continues a thread leaves out the tools, which the server holds.
        """
        return bool(self.size.steps) and "thread" not in request and not find_tools(request)

    def reply(self, request: Request) -> Reply:
        if self.is_side_call(request):
            return _TITLE
        self.replies.append(self._go_on(request))
        return self.replies[-1]

    def _go_on(self, request: Request) -> Reply:
        self._step += 1
        if self._step > self.size.steps:
            turn, self._turn, self._step = self._turn, self._turn + 1, 0
            return self._end(turn, request)
        calls = self._calls(find_tools(request))
        thinking = "Let me think about it." if request.get("thinking") else None
        return Reply(text=self._think(), tool_calls=calls, thinking=thinking)

    def _think(self) -> str:
        return make_prose(self.rng, self.size.reply_tokens)

    def _end(self, turn: int, request: Request) -> Reply:
        words = self.goodbye(turn)
        if not self.size.steps:
            return Reply(text=f"{self._think()}\n\n{REPORT}\n```\n{self._note()}\n```\n\n{words}")
        if (ending := find_ending(request, f"call_end_{turn}", words)) is not None:
            return Reply(text=words, tool_calls=(ending,))
        if self.last_command is None:
            return Reply(text=words)
        call = find_tools(request)[0].run("call_end", f"{self.last_command} && echo {words}")
        return Reply(text=self._think(), tool_calls=(call,))

    def _calls(self, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
        """The tools take turns; now and then two are called at once."""
        number = self._turn * self.size.steps + self._step - 1
        count = 2 if number % _PARALLEL_EVERY == _PARALLEL_EVERY - 1 else 1
        return tuple(
            tools[(number + place) % len(tools)].read(
                f"call_{number}_{place}", str(self._path(number + place))
            )
            for place in range(count)
        )

    def _note(self) -> str:
        return make_tool_text(self.rng, self.rng.choice(KINDS), self.size.file_tokens)

    def _path(self, number: int) -> Path:
        return self.folder / f"note_{number:03}.txt"


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
