"""A LangChain agent, a graph with a memory: langchain_agent.py plain|streaming|trimming PROMPT..."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import trim_messages
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

# Counted as the library counts by default: four characters for a token.
_KEPT_TOKENS = 20_000


def read_note(path: str) -> str:
    """Read one file."""
    return Path(path).read_text("utf-8")


@wrap_model_call
def trim(request: Any, handler: Callable[[Any], Any]) -> Any:
    """As the library's documents show it: the newest messages, from a prompt of the user on."""
    kept = trim_messages(
        request.messages,
        max_tokens=_KEPT_TOKENS,
        token_counter="approximate",
        strategy="last",
        include_system=True,
        start_on="human",
    )
    return handler(request.override(messages=kept))


def main(mode: str, prompts: list[str]) -> None:
    model = ChatOpenAI(
        model=os.environ["GATEWAY_MODEL"],
        base_url=os.environ["GATEWAY_URL"],
        api_key=os.environ["GATEWAY_KEY"],
        streaming=mode == "streaming",
    )
    system = "You read notes and report what they say."
    trims = [trim] if mode == "trimming" else []
    agent = create_agent(
        model, [read_note], system_prompt=system, checkpointer=InMemorySaver(), middleware=trims
    )
    settings = {"configurable": {"thread_id": "notes"}}
    for prompt in prompts:
        state = agent.invoke({"messages": [("user", prompt)]}, settings)
        print(state["messages"][-1].content)


main(sys.argv[1], sys.argv[2:])
