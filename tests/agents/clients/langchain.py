"""LangChain and LangGraph: `base_url` and `api_key` of ChatOpenAI. One agent trims its own history."""

from tests.agents.client import Client, python_program, run_in_venv

# `trim_messages` keeps no part of a turn whose prompt is too far back.
_TURNS = {"trimming": 14}
CLIENTS = tuple(
    Client(
        name=f"LangChain + LangGraph, {mode}",
        package="langchain",
        version="1.4.7",
        api="chat",
        window=16_000,
        program=python_program("langchain"),
        commands=run_in_venv("langchain", "langchain_agent.py", mode),
        turns=_TURNS.get(mode, 3),
        sends="newest" if mode == "trimming" else "all",
    )
    for mode in ("plain", "streaming", "trimming")
)
