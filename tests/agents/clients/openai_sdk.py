"""The OpenAI SDK: `base_url` and `api_key` in the code. Each way of asking is a client of its own."""

from tests.agents.client import Client, python_program, run_in_venv

CLIENTS = tuple(
    Client(
        name=f"openai SDK, {mode}",
        package="openai",
        version="3.54.0",
        api="chat",
        window=16_000,
        program=python_program("openai_sdk"),
        commands=run_in_venv("openai_sdk", "openai_loop.py", mode),
    )
    for mode in ("sync", "async", "stream", "async-stream")
)
