"""mini-swe-agent: environment variables. One task, no turns: it cannot go on with what it has ended."""

from collections.abc import Sequence

from tests.agents.client import KEY, MODEL, Client, Command, Place, python_program

_PROGRAM = python_program("mini_swe_agent", "mini")


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    environment = {
        "OPENAI_API_BASE": place.base_url,
        "OPENAI_API_KEY": KEY,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    task = ("-t", *prompts, "-y", "--exit-immediately", "-l", "0", "-o", "out.json")
    return (Command(arguments=(str(_PROGRAM), "-m", f"openai/{MODEL}", *task), environment=environment),)


CLIENT = Client(
    name="mini-swe-agent",
    package="mini-swe-agent",
    version="2.4.6",
    api="chat",
    window=16_000,
    program=_PROGRAM,
    commands=_commands,
    turns=1,
    last_command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)
