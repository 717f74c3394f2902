"""AutoGen: `base_url` and `api_key` of its OpenAIChatCompletionClient. Its context keeps 40 messages."""

from tests.agents.client import Client, python_program, run_in_venv

CLIENT = Client(
    name="AutoGen, buffered",
    package="autogen-agentchat",
    version="0.7.5",
    api="chat",
    window=16_000,
    program=python_program("autogen"),
    commands=run_in_venv("autogen", "autogen_agent.py"),
    sends="newest",
)
