"""Qwen Code: three environment variables and `--auth-type openai`."""

from collections.abc import Sequence

from tests.agents.client import KEY, MODEL, Client, Command, Place, npm_program

_PROGRAM = npm_program(".bin/qwen")


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    environment = {"OPENAI_BASE_URL": place.base_url, "OPENAI_API_KEY": KEY, "OPENAI_MODEL": MODEL}
    start = (str(_PROGRAM), "--auth-type", "openai", "--approval-mode", "yolo")
    return tuple(
        Command(arguments=(*start, *(("--continue",) if turn else ()), "-p", prompt), environment=environment)
        for turn, prompt in enumerate(prompts)
    )


CLIENT = Client(
    name="Qwen Code",
    package="@qwen-code/qwen-code",
    version="0.24.4",
    api="chat",
    window=48_000,
    program=_PROGRAM,
    commands=_commands,
)
