"""pydantic-ai: `base_url` and `api_key` of its OpenAIProvider."""

from tests.agents.client import Client, python_program, run_in_venv

CLIENT = Client(
    name="pydantic-ai",
    package="pydantic-ai-slim",
    version="2.68.0",
    api="chat",
    window=16_000,
    program=python_program("pydantic_ai"),
    commands=run_in_venv("pydantic_ai", "pydantic_ai_agent.py"),
)
