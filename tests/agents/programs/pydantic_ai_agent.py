"""A pydantic-ai agent: pydantic_ai_agent.py PROMPT..."""

import os
import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits


def read_note(path: str) -> str:
    """Read one file."""
    return Path(path).read_text("utf-8")


def main(prompts: list[str]) -> None:
    provider = OpenAIProvider(base_url=os.environ["GATEWAY_URL"], api_key=os.environ["GATEWAY_KEY"])
    model = OpenAIChatModel(os.environ["GATEWAY_MODEL"], provider=provider)
    agent = Agent(model, system_prompt="You read notes and report what they say.", tools=[read_note])
    history = None
    for prompt in prompts:
        # By default a run ends with an error after 50 requests.
        limits = UsageLimits(request_limit=None)
        result = agent.run_sync(prompt, message_history=history, usage_limits=limits)
        history = result.all_messages()
        print(result.output)


main(sys.argv[1:])
