"""The Anthropic SDK: `base_url` and `api_key` in the code. Each way of asking is a client of its own."""

from tests.agents.client import Client, python_program, run_in_venv

CLIENTS = tuple(
    Client(
        name=f"anthropic SDK, {mode}",
        package="anthropic",
        version="2.12.0",
        api="messages",
        window=16_000,
        program=python_program("anthropic_sdk"),
        commands=run_in_venv("anthropic_sdk", "anthropic_loop.py", mode),
    )
    for mode in ("sync", "async", "stream", "async-stream")
)
