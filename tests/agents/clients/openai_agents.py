"""OpenAI Agents SDK: an AsyncOpenAI with `base_url` and `api_key`, given to its model."""

from tests.agents.client import Api, Client, python_program, run_in_venv


def _client(api: Api, mode: str) -> Client:
    return Client(
        name=f"openai-agents, {api}, {mode}",
        package="openai-agents",
        version="0.24.0",
        api=api,
        window=16_000,
        program=python_program("openai_agents"),
        commands=run_in_venv("openai_agents", "openai_agents_agent.py", api, mode),
    )


CLIENTS = (
    _client("chat", "plain"),
    _client("chat", "streaming"),
    _client("responses", "plain"),
    _client("responses", "streaming"),
)
