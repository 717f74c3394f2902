"""A program under trial and how it is started. The table of them is `clients.py`."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.toy.validity import STRICT, Rules

Api = Literal["chat", "responses", "messages"]
# What a request holds: the whole history; only what is new, as the server holds the rest; or what the client
# has not dropped.
Sends = Literal["all", "new", "newest"]
_REPOSITORY = Path(__file__).resolve().parents[2]
_PROGRAMS = _REPOSITORY / "tests" / "agents" / "programs"
# Where `make install-agents` puts everything; ignored by git.
INSTALLED = _REPOSITORY / ".agents"
MODEL = "toy-model"
KEY = "sk-toy"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders and addresses of one run: a home, a project, and the gateway."""

    home: Path
    project: Path
    root_url: str

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"


@dataclass(frozen=True, kw_only=True)
class Command:
    """lines: what is typed into it."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()


Commands = Callable[[Place, Sequence[str]], tuple[Command, ...]]


@dataclass(frozen=True, kw_only=True)
class Client:
    """window: tokens; holds at least twice what the client sends before any work (its floor).

    commands: one after the other, each to end with status 0, for the prompts of a user.
    prepare: writes the settings file, if it has one. program: what must be there to run it.
    turns: prompts of the user. last_command: what a client wants the model to call where its work is done.
    rules: what its upstream lets pass.
    """

    name: str
    package: str
    version: str
    program: Path
    commands: Commands
    api: Api = "chat"
    window: int = 16_000
    prepare: Callable[[Place], None] = lambda _: None
    has_tools: bool = True
    turns: int = 3
    last_command: str | None = None
    sends: Sends = "all"
    rules: Rules = STRICT
    model: str = MODEL

    @property
    def needs_npm(self) -> bool:
        return INSTALLED / "npm" in self.program.parents


def npm_program(path: str) -> Path:
    return INSTALLED / "npm" / "node_modules" / path


def python_program(venv: str, name: str = "python") -> Path:
    return INSTALLED / venv / "bin" / name


def copy_program(program: str) -> Callable[[Place], None]:
    """To a folder where Node finds the packages: it searches those above the program."""

    def prepare(place: Place) -> None:
        shutil.copy(_PROGRAMS / program, place.home)
        (place.home / "node_modules").symlink_to(npm_program("."))

    return prepare


def run_in_node(program: str, *arguments: str) -> Commands:
    """A program of this repository around an SDK from npm. `copy_program` prepares it."""

    def commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
        start = ("node", str(place.home / program), *arguments)
        return (Command(arguments=(*start, *prompts), environment=_endpoint(place, program)),)

    return commands


def run_in_venv(venv: str, program: str, *arguments: str) -> Commands:
    """An agent of `programs/sdk_agents.py`. It runs in the SDK's venv and imports nothing from here."""
    start = (str(python_program(venv)), str(_PROGRAMS / "sdk_agents.py"), program, *arguments)

    def commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
        return (Command(arguments=(*start, *prompts), environment=_endpoint(place, program)),)

    return commands


def _endpoint(place: Place, program: str) -> dict[str, str]:
    # The Anthropic SDKs add /v1 themselves.
    url = place.root_url if program.startswith("anthropic_") else place.base_url
    return {"GATEWAY_URL": url, "GATEWAY_KEY": KEY, "GATEWAY_MODEL": MODEL}


def bare_environment(place: Place) -> dict[str, str]:
    """An environment with the caller's path only: no keys, proxies or settings."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place.home),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
    }
