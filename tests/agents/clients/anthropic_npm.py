"""The tool runner of the Anthropic SDK from npm: `baseURL` and `apiKey`. The server holds its history."""

from tests.agents.client import Client, copy_program, npm_program, run_in_node

_PROGRAM = "anthropic_runner.mjs"


def _client(kind: str, mode: str) -> Client:
    return Client(
        name=f"Anthropic SDK (npm), {kind}, {mode}",
        package="@anthropic-ai/sdk",
        version="1.12.0",
        api="messages",
        window=16_000,
        program=npm_program("@anthropic-ai/sdk"),
        commands=run_in_node(_PROGRAM, kind, mode),
        prepare=copy_program(_PROGRAM),
        sends="new",
    )


CLIENTS = (
    _client("tool runner", "plain"),
    _client("tool runner", "streaming"),
    _client("thread", "plain"),
    _client("thread", "streaming"),
)
