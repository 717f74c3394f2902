"""The tool runner of the Anthropic SDK. By default it sends only what the server does not hold."""

from tests.agents.client import Client, python_program, run_in_venv


def _client(holder: str, mode: str) -> Client:
    return Client(
        name=f"anthropic tool_runner, {holder}, {mode}",
        package="anthropic",
        version="2.12.0",
        api="messages",
        window=16_000,
        program=python_program("anthropic_sdk"),
        commands=run_in_venv("anthropic_sdk", "anthropic_runner.py", holder, mode),
        sends="all" if holder == "unthreaded" else "new",
    )


CLIENTS = (
    _client("unthreaded", "plain"),
    _client("runner", "plain"),
    _client("runner", "streaming"),
    _client("thread", "plain"),
)
