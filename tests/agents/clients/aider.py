"""aider: environment variables. `--max-chat-history-tokens` above the window leaves its history to us.

It has no tools: the model answers with whole files. All prompts go to one process, a line each.
"""

from collections.abc import Sequence

from tests.agents.client import KEY, MODEL, Client, Command, Place, python_program
from tests.agents.errand import REPORT

_PROGRAM = python_program("aider", "aider")


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    environment = {
        "OPENAI_API_BASE": place.base_url,
        "OPENAI_API_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    quiet = ("--yes-always", "--no-show-model-warnings", "--no-check-update", "--no-analytics", "--no-git")
    plain = ("--map-tokens", "0", "--no-fancy-input", "--no-pretty", "--max-chat-history-tokens", "1000000")
    arguments = (str(_PROGRAM), "--model", f"openai/{MODEL}", *quiet, *plain, REPORT)
    return (Command(arguments=arguments, environment=environment, lines=tuple(prompts)),)


CLIENT = Client(
    name="aider",
    package="aider-chat",
    version="0.86.2",
    api="chat",
    window=16_000,
    program=_PROGRAM,
    commands=_commands,
    has_tools=False,
    turns=42,
)
