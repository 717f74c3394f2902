"""An OpenAI Agents SDK agent: openai_agents_agent.py chat|responses plain|streaming|trimming PROMPT..."""

import asyncio
import os
import sys
from pathlib import Path

from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.extensions import ToolOutputTrimmer
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI

# By default a run ends with an error after 10 turns.
_MAX_TURNS = 1_000


@function_tool
def read_note(path: str) -> str:
    """Read one file."""
    return Path(path).read_text("utf-8")


async def main(api: str, mode: str, prompts: list[str]) -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=os.environ["GATEWAY_URL"], api_key=os.environ["GATEWAY_KEY"])
    kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    model = kind(model=os.environ["GATEWAY_MODEL"], openai_client=client)
    instructions = "You read notes and report what they say."
    agent = Agent(name="Reader", instructions=instructions, model=model, tools=[read_note])
    # It shortens the tool outputs of all but the last two turns.
    settings = RunConfig(call_model_input_filter=ToolOutputTrimmer() if mode == "trimming" else None)
    history = []
    for prompt in prompts:
        history.append({"role": "user", "content": prompt})
        if mode == "streaming":
            result = Runner.run_streamed(agent, history, max_turns=_MAX_TURNS, run_config=settings)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, history, max_turns=_MAX_TURNS, run_config=settings)
        history = result.to_input_list()
        print(result.final_output)


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
