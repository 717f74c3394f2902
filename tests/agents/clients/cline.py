"""Cline: provider, key and base URL by `cline auth`. `--compaction off` leaves its history to us.

One task, no turns: with a prompt on the command line it goes on with no session (`--id` wants a terminal).
"""

from collections.abc import Sequence

from tests.agents.client import KEY, MODEL, Client, Command, Place, npm_program

_PROGRAM = npm_program("@cline/cli-linux-x64/bin/cline")
_PROVIDER = "openai-compatible"


def _commands(place: Place, prompts: Sequence[str]) -> tuple[Command, ...]:
    login = (str(_PROGRAM), "auth", _PROVIDER, "-k", KEY, "-m", MODEL, "-b", place.base_url)
    start = (str(_PROGRAM), "--json", "--compaction", "off", "-P", _PROVIDER, "-m", MODEL)
    return (Command(arguments=login), *(Command(arguments=(*start, prompt)) for prompt in prompts))


CLIENT = Client(
    name="Cline",
    package="cline",
    version="3.0.65",
    api="chat",
    window=24_000,
    program=_PROGRAM,
    commands=_commands,
    turns=1,
)
