"""Codex: a provider of its own in `config.toml`. It speaks Responses only."""

from collections.abc import Sequence

from tests.agents.client import KEY, MODEL, Client, Command, Place, npm_program

_PROGRAM = npm_program(".bin/codex")
_SETTINGS = """\
model = "{model}"
model_provider = "gateway"
model_context_window = 272000

[model_providers.gateway]
name = "Gateway"
base_url = "{base_url}"
env_key = "GATEWAY_KEY"
wire_api = "responses"
"""


def _prepare(place: Place) -> None:
    text = _SETTINGS.format(model=MODEL, base_url=place.base_url)
    (place.home / "config.toml").write_text(text, "utf-8")


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    start = (str(_PROGRAM), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    environment = {"CODEX_HOME": str(place.home), "GATEWAY_KEY": KEY}
    return tuple(
        Command(arguments=(*start, *(("resume", "--last") if turn else ()), prompt), environment=environment)
        for turn, prompt in enumerate(prompts)
    )


CLIENT = Client(
    name="Codex",
    package="@openai/codex",
    version="0.169.0",
    api="responses",
    window=24_000,
    program=_PROGRAM,
    commands=_commands,
    prepare=_prepare,
)
