"""An AutoGen agent with a buffered context: autogen_agent.py PROMPT..."""

import asyncio
import os
import sys
from pathlib import Path

from autogen_agentchat.agents import AssistantAgent
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import ModelFamily
from autogen_ext.models.openai import OpenAIChatCompletionClient

# By default the agent ends its work after one call.
_MAX_ITERATIONS = 1_000
_KEPT_MESSAGES = 40


def read_note(path: str) -> str:
    """Read one file."""
    return Path(path).read_text("utf-8")


async def main(prompts: list[str]) -> None:
    model = OpenAIChatCompletionClient(
        model=os.environ["GATEWAY_MODEL"],
        base_url=os.environ["GATEWAY_URL"],
        api_key=os.environ["GATEWAY_KEY"],
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": False,
            "structured_output": False,
            "family": ModelFamily.UNKNOWN,
        },
    )
    agent = AssistantAgent(
        "reader",
        model,
        tools=[read_note],
        system_message="You read notes and report what they say.",
        model_context=BufferedChatCompletionContext(_KEPT_MESSAGES),
        max_tool_iterations=_MAX_ITERATIONS,
    )
    for prompt in prompts:
        print((await agent.run(task=prompt)).messages[-1].to_text())


asyncio.run(main(sys.argv[1:]))
