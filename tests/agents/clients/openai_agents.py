"""OpenAI Agents SDK: an AsyncOpenAI with `base_url` and `api_key`, given to its model.

One agent shortens the old tool outputs in its history.
"""

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
        turns=14 if mode == "trimming" else 3,
        sends="newest" if mode == "trimming" else "all",
    )


CLIENTS = (
    _client("chat", "plain"),
    _client("chat", "streaming"),
    _client("responses", "plain"),
    _client("responses", "streaming"),
    _client("responses", "trimming"),
)
