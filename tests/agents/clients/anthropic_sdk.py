"""The Anthropic SDK: `base_url` and `api_key` in the code. Each way of asking is a client of its own.

One front end keeps its newest 40 messages.
"""

from tests.agents.client import Client, python_program, run_in_venv


def _client(name: str, mode: str, what: str, turns: int = 3) -> Client:
    return Client(
        name=f"anthropic SDK, {name}",
        package="anthropic",
        version="2.12.0",
        api="messages",
        window=16_000,
        program=python_program("anthropic_sdk"),
        commands=run_in_venv("anthropic_sdk", "anthropic_loop.py", mode, what),
        turns=turns,
        sends="all" if what == "all" else "newest",
    )


CLIENTS = (
    *(_client(mode, mode, "all") for mode in ("sync", "async", "stream", "async-stream")),
    _client("newest messages", "stream", "newest-messages", turns=14),
)
