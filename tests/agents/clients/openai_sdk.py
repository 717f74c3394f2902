"""The OpenAI SDK: `base_url` and `api_key` in the code. Each way of asking is a client of its own.

Two front ends roll a window of their own: one keeps its newest 40 messages, one its newest 20 tool results.
"""

from tests.agents.client import Client, python_program, run_in_venv


def _client(name: str, mode: str, what: str) -> Client:
    return Client(
        name=f"openai SDK, {name}",
        package="openai",
        version="3.54.0",
        api="chat",
        window=16_000,
        program=python_program("openai_sdk"),
        commands=run_in_venv("openai_sdk", "openai_loop.py", mode, what),
        sends="all" if what == "all" else "newest",
    )


CLIENTS = (
    *(_client(mode, mode, "all") for mode in ("sync", "async", "stream", "async-stream")),
    _client("newest messages", "stream", "newest-messages"),
    _client("newest results", "stream", "newest-results"),
)
