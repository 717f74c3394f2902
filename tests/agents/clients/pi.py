"""pi: a provider of its own in `models.json`. `settings.json` leaves its history to us."""

import json
from collections.abc import Sequence

from tests.agents.client import KEY, MODEL, Client, Command, Place, npm_program

_PROGRAM = npm_program(".bin/pi")


def _prepare(place: Place) -> None:
    provider = {
        "baseUrl": place.base_url,
        "api": "openai-completions",
        "apiKey": KEY,
        "models": [{"id": MODEL, "contextWindow": 1_000_000, "maxTokens": 8_192}],
    }
    folder = place.home / ".pi" / "agent"
    folder.mkdir(parents=True)
    (folder / "models.json").write_text(json.dumps({"providers": {"gateway": provider}}), "utf-8")
    (folder / "settings.json").write_text(json.dumps({"compaction": {"enabled": False}}), "utf-8")


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    start = (str(_PROGRAM), "--provider", "gateway", "--model", MODEL)
    return tuple(
        Command(arguments=(*start, *(("-c",) if turn else ()), "-p", prompt), environment={"PI_OFFLINE": "1"})
        for turn, prompt in enumerate(prompts)
    )


CLIENT = Client(
    name="pi",
    package="@earendil-works/pi-coding-agent",
    version="0.74.2",
    api="chat",
    window=16_000,
    program=_PROGRAM,
    commands=_commands,
    prepare=_prepare,
)
