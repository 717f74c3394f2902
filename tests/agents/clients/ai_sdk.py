"""Vercel AI SDK: `baseURL` and `apiKey` of the provider, one provider for each format."""

from tests.agents.client import Api, Client, Sends, copy_program, npm_program, run_in_node

_PROGRAM = "ai_sdk_agent.mjs"


def _client(api: Api, mode: str, sends: Sends = "all") -> Client:
    return Client(
        name=f"Vercel AI SDK, {api}, {mode}",
        package="ai",
        version="6.0.326",
        api=api,
        window=16_000,
        program=npm_program("ai"),
        commands=run_in_node(_PROGRAM, api, mode),
        prepare=copy_program(_PROGRAM),
        sends=sends,
    )


CLIENTS = (
    _client("chat", "plain"),
    _client("chat", "streaming"),
    # The provider's default: it refers to the model's items by their ids, which the server holds.
    _client("responses", "plain", sends="new"),
    _client("responses", "streaming", sends="new"),
    _client("messages", "plain"),
    _client("messages", "streaming"),
)
