"""opencode: `opencode.json` in the project. Limits far above the window: it never compacts by itself."""

import json
from collections.abc import Sequence

from tests.agents.client import KEY, MODEL, Client, Command, Place, npm_program

_PROGRAM = npm_program("opencode-linux-x64/bin/opencode")
_QUIET = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


def _prepare(place: Place) -> None:
    limits = {"context": 128_000, "output": 8_192}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Gateway",
        "options": {"baseURL": place.base_url, "apiKey": KEY},
        "models": {MODEL: {"name": MODEL, "limit": limits, "tool_call": True}},
    }
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": f"gateway/{MODEL}",
        "permission": {"edit": "allow", "bash": "allow", "webfetch": "allow"},
        "provider": {"gateway": provider},
    }
    (place.project / "opencode.json").write_text(json.dumps(settings), "utf-8")


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    go_on: tuple[tuple[str, ...], ...] = ((), *[("--continue",)] * (len(prompts) - 1))
    return tuple(
        Command(arguments=(str(_PROGRAM), "run", *flags, prompt), environment=_QUIET)
        for flags, prompt in zip(go_on, prompts, strict=True)
    )


CLIENT = Client(
    name="opencode",
    package="opencode-ai",
    version="1.18.33",
    api="chat",
    window=24_000,
    program=_PROGRAM,
    commands=_commands,
    prepare=_prepare,
)
