"""smolagents: `api_base` and `api_key` of its OpenAIModel."""

from tests.agents.client import Client, python_program, run_in_venv

CLIENT = Client(
    name="smolagents",
    package="smolagents",
    version="1.26.0",
    api="chat",
    window=16_000,
    program=python_program("smolagents"),
    commands=run_in_venv("smolagents", "smolagents_agent.py", "tools"),
)
