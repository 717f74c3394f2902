"""LangChain and LangGraph: `base_url` and `api_key` of ChatOpenAI."""

from tests.agents.client import Client, python_program, run_in_venv

CLIENTS = tuple(
    Client(
        name=f"LangChain + LangGraph, {mode}",
        package="langchain",
        version="1.4.7",
        api="chat",
        window=16_000,
        program=python_program("langchain"),
        commands=run_in_venv("langchain", "langchain_agent.py", mode),
    )
    for mode in ("plain", "streaming")
)
