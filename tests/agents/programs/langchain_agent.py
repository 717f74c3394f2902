"""A LangChain agent, a LangGraph graph with a memory: langchain_agent.py plain|streaming PROMPT..."""

import os
import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver


def read_note(path: str) -> str:
    """Read one file."""
    return Path(path).read_text("utf-8")


def main(mode: str, prompts: list[str]) -> None:
    model = ChatOpenAI(
        model=os.environ["GATEWAY_MODEL"],
        base_url=os.environ["GATEWAY_URL"],
        api_key=os.environ["GATEWAY_KEY"],
        streaming=mode == "streaming",
    )
    system = "You read notes and report what they say."
    agent = create_agent(model, [read_note], system_prompt=system, checkpointer=InMemorySaver())
    # By default a run ends with an error after 25 steps of the graph.
    settings = {"configurable": {"thread_id": "notes"}, "recursion_limit": 1_000}
    for prompt in prompts:
        state = agent.invoke({"messages": [("user", prompt)]}, settings)
        print(state["messages"][-1].content)


main(sys.argv[1], sys.argv[2:])
