"""gptme: the provider `local`, which takes its address from the environment.

It takes the window for 128,000 tokens and sends the newest messages that fit.
"""

from collections.abc import Sequence

from tests.agents.client import KEY, MODEL, Client, Command, Place, python_program
from tests.toy.validity import Rules

_PROGRAM = python_program("gptme", "gptme")


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    # Without the timeout it looks for its token tables on the internet before each count.
    environment = {"OPENAI_BASE_URL": place.base_url, "OPENAI_API_KEY": KEY, "GPTME_TIKTOKEN_TIMEOUT": "0"}
    start = (
        str(_PROGRAM),
        "--non-interactive",
        "--model",
        f"local/{MODEL}",
        "--name",
        "notes",
        "--no-workspace",
    )
    tools = ("--tools", "shell,read", "--tool-format", "tool")
    return tuple(
        Command(arguments=(*start, *tools, *(("--resume",) if turn else ()), prompt), environment=environment)
        for turn, prompt in enumerate(prompts)
    )


CLIENT = Client(
    name="gptme",
    package="gptme",
    version="0.35.1",
    api="chat",
    window=64_000,
    program=_PROGRAM,
    commands=_commands,
    sends="newest",
    rules=Rules(later_system=True),
)
