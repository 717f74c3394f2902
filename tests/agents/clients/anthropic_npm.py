"""The tool runner of the Anthropic SDK from npm. By default it sends only what the server does not hold."""

from tests.agents.client import Client, copy_program, npm_program, run_in_node

_PROGRAM = "anthropic_runner.mjs"


def _client(holder: str, mode: str) -> Client:
    return Client(
        name=f"anthropic toolRunner, {holder}, {mode}",
        package="@anthropic-ai/sdk",
        version="1.12.0",
        api="messages",
        window=16_000,
        program=npm_program("@anthropic-ai/sdk"),
        commands=run_in_node(_PROGRAM, holder, mode),
        prepare=copy_program(_PROGRAM),
        sends="all" if holder == "unthreaded" else "new",
    )


CLIENTS = (
    _client("unthreaded", "plain"),
    _client("runner", "plain"),
    _client("runner", "streaming"),
    _client("thread", "plain"),
    _client("thread", "streaming"),
)
