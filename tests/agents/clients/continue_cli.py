"""Continue: `apiBase` in `config.yaml`. A `contextLength` far above the window, so that it never prunes."""

from collections.abc import Sequence
from pathlib import Path

from tests.agents.client import KEY, MODEL, Client, Command, Place, npm_program

_PROGRAM = npm_program(".bin/cn")
_SETTINGS = """\
name: Gateway
version: 1.0.0
schema: v1
models:
  - name: {model}
    provider: openai
    model: {model}
    apiBase: {base_url}
    apiKey: {key}
    roles: [chat]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: 1000000
      maxTokens: 8192
"""


def _find_settings(place: Place) -> Path:
    return place.home / ".continue" / "config.yaml"


def _prepare(place: Place) -> None:
    path = _find_settings(place)
    path.parent.mkdir()
    path.write_text(_SETTINGS.format(model=MODEL, base_url=place.base_url, key=KEY), "utf-8")


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    start = (str(_PROGRAM), "--config", str(_find_settings(place)), "--auto")
    environment = {"CONTINUE_TELEMETRY_ENABLED": "0"}
    return tuple(
        Command(arguments=(*start, *(("--resume",) if turn else ()), "-p", prompt), environment=environment)
        for turn, prompt in enumerate(prompts)
    )


CLIENT = Client(
    name="Continue",
    package="@continuedev/cli",
    version="1.5.47",
    api="chat",
    window=24_000,
    program=_PROGRAM,
    commands=_commands,
    prepare=_prepare,
)
