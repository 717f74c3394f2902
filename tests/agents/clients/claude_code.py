"""Claude Code: environment variables. It speaks Messages only."""

from collections.abc import Sequence

from tests.agents.client import KEY, Client, Command, Place, npm_program

_PROGRAM = npm_program("@anthropic-ai/claude-code-linux-x64/claude")

# With a model that it does not know it writes system messages into the history, a beta of 2026.
_MODEL = "claude-sonnet-4-5"


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    environment = {
        "ANTHROPIC_BASE_URL": place.root_url,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_MODEL": _MODEL,
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }
    return tuple(
        Command(
            arguments=(str(_PROGRAM), "-p", prompt, "--dangerously-skip-permissions", *_go_on(turn)),
            environment=environment,
        )
        for turn, prompt in enumerate(prompts)
    )


def _go_on(turn: int) -> tuple[str, ...]:
    return ("--continue",) if turn else ()


CLIENT = Client(
    name="Claude Code",
    package="@anthropic-ai/claude-code",
    version="2.1.329",
    api="messages",
    # It asks for 32,000 tokens of thinking inside 32,000 of reply: a third of the window at most.
    window=110_000,
    program=_PROGRAM,
    commands=_commands,
    model=_MODEL,
)
