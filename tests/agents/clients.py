"""The table of programs, `clients.yaml`, as clients."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.agents.client import (
    KEY,
    MODEL,
    Client,
    Command,
    Place,
    copy_program,
    npm_program,
    python_program,
    run_in_node,
    run_in_venv,
)
from tests.toy.validity import STRICT, Rules

_TABLE = Path(__file__).with_name("clients.yaml")
# Programs of this repository around an SDK: the venv or npm, the package, its version, and the program.
_SDKS: Mapping[str, tuple[str, str, str, str]] = {
    "openai_agents": ("openai_agents", "openai-agents", "0.24.0", "openai_agents"),
    "langchain": ("langchain", "langchain", "1.4.7", "langchain"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai-slim", "2.68.0", "pydantic_ai"),
    "openai": ("openai_sdk", "openai", "3.54.0", "openai_loop"),
    "smolagents": ("smolagents", "smolagents", "1.26.0", "smolagents"),
    "autogen": ("autogen", "autogen-agentchat", "0.7.5", "autogen"),
    "anthropic": ("anthropic_sdk", "anthropic", "2.12.0", "anthropic_loop"),
    "anthropic_runner": ("anthropic_sdk", "anthropic", "2.12.0", "anthropic_runner"),
    "anthropic_npm": ("npm", "@anthropic-ai/sdk", "1.12.0", "anthropic_runner.mjs"),
    "ai_sdk": ("npm", "ai", "6.0.326", "ai_sdk_agent.mjs"),
}
# Rows that `Client` takes as they are.
_PLAIN = (
    "name",
    "package",
    "version",
    "api",
    "window",
    "has_tools",
    "turns",
    "last_command",
    "sends",
    "model",
)


def _make_client(row: Mapping[str, Any]) -> Client:
    said = {name: row[name] for name in _PLAIN if name in row}
    if "sdk" in row:
        return _make_around_sdk(row, said)
    venv, _, path = row["program"].partition("/")
    program = npm_program(path) if venv == "npm" else python_program(venv, path)
    rules = Rules(later_system=True) if row.get("later_system") else STRICT

    def commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
        return tuple(_list_commands(row, {**_name_parts(place), "program": str(program)}, prompts))

    def prepare(place: Place) -> None:
        for name, text in row.get("files", {}).items():
            folder, _, below = name.partition("/")
            target = getattr(place, folder) / below
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_fill(text, _name_parts(place)), "utf-8")

    return Client(**said, program=program, commands=commands, prepare=prepare, rules=rules)


def _make_around_sdk(row: Mapping[str, Any], said: dict[str, Any]) -> Client:
    venv, package, version, program = _SDKS[row["sdk"]]
    said = {"api": "messages" if program.startswith("anthropic_") else "chat", **said}
    said |= {"package": package, "version": version}
    words = row.get("words", ())
    if venv == "npm":
        commands, prepare = run_in_node(program, *words), copy_program(program)
        return Client(**said, program=npm_program(package), commands=commands, prepare=prepare)
    return Client(**said, program=python_program(venv), commands=run_in_venv(venv, program, *words))


def _list_commands(row: Mapping[str, Any], parts: Mapping[str, str], prompts: Sequence[str]) -> list[Command]:
    def command(words: Sequence[str], prompt: Sequence[str] = (), lines: Sequence[str] = ()) -> Command:
        environment = {name: _fill(value, parts) for name, value in row.get("environment", {}).items()}
        filled = tuple(_fill(word, parts) for word in words)
        return Command(arguments=(*filled, *prompt), environment=environment, lines=tuple(lines))

    start, go_on, last = row["start"], row.get("go_on", ()), row.get("last", ())
    if row.get("at_once") == "lines":
        return [command(start, lines=prompts)]
    turns = [(*start, *(go_on if turn else ()), *last) for turn in range(len(prompts))]
    first = [command(row["first"])] if "first" in row else []
    return [*first, *(command(words, (prompt,)) for words, prompt in zip(turns, prompts, strict=True))]


def _name_parts(place: Place) -> dict[str, str]:
    addresses = {"base_url": place.base_url, "root_url": place.root_url, "home": str(place.home)}
    return {**addresses, "key": KEY, "model": MODEL}


def _fill(text: str, parts: Mapping[str, str]) -> str:
    for name, value in parts.items():
        text = text.replace(f"{{{name}}}", value)
    return text


CLIENTS = tuple(_make_client(row) for row in yaml.safe_load(_TABLE.read_text("utf-8")))


def find_client(name: str) -> Client:
    return next(client for client in CLIENTS if client.name == name)
