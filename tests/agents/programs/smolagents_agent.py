"""A smolagents agent with one tool: smolagents_agent.py tools|code PROMPT...

It ends a task by a call of `final_answer`, and writes calls and results into its history as text.
"""

import os
import sys
from pathlib import Path

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

# By default a run ends with an error after 20 steps.
_MAX_STEPS = 1_000


@tool
def read_note(path: str) -> str:
    """Read one file.

    Args:
        path: The path of the file.
    """
    return Path(path).read_text("utf-8")


def main(kind: str, prompts: list[str]) -> None:
    model = OpenAIModel(
        model_id=os.environ["GATEWAY_MODEL"],
        api_base=os.environ["GATEWAY_URL"],
        api_key=os.environ["GATEWAY_KEY"],
    )
    make = ToolCallingAgent if kind == "tools" else CodeAgent
    agent = make(tools=[read_note], model=model, max_steps=_MAX_STEPS, verbosity_level=0)
    for prompt in prompts:
        print(agent.run(prompt, reset=False))


main(sys.argv[1], sys.argv[2:])
