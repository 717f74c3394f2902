"""Small agents around SDKs: sdk_agents.py NAME WORD... PROMPT...

Each runs in the SDK's own venv, imports nothing else, and gets `GATEWAY_URL` and the user's prompts. It has
one tool, and prints the last words of each turn.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_MODEL, _KEY = os.environ["GATEWAY_MODEL"], os.environ["GATEWAY_KEY"]
# Without an address in the code, OPENAI_BASE_URL holds.
_ENDPOINT = {"base_url": os.environ.get("GATEWAY_URL"), "api_key": _KEY}
_SYSTEM = "You read notes and report what they say."
_PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
_OUTPUT_TOKENS = 2_000
# By default most SDKs end a run with an error after some steps.
_MAX_STEPS = 1_000
_KEPT_MESSAGES, _KEPT_STEPS = 40, 20
# As LangChain counts by default: four characters for a token.
_KEPT_TOKENS = 20_000


def read_note(path: str) -> str:
    """Read one file.

    Args:
        path: The path of the file.
    """
    return Path(path).read_text("utf-8")


async def run_openai_loop(prompts: Sequence[str], mode: str, what: str) -> None:
    """By hand, as a front end: sync|async|stream|async-stream all|newest-messages|newest-results."""
    from openai import AsyncOpenAI, OpenAI

    function = {"name": "read_note", "description": "Read one file.", "parameters": _PARAMETERS}
    envelope = {"model": _MODEL, "tools": [{"type": "function", "function": function}]}

    async def ask(messages: list[Any]) -> Any:
        match mode:
            case "sync":
                return OpenAI(**_ENDPOINT).chat.completions.create(**envelope, messages=messages)
            case "async":
                return await AsyncOpenAI(**_ENDPOINT).chat.completions.create(**envelope, messages=messages)
            case "stream":
                with OpenAI(**_ENDPOINT).chat.completions.stream(**envelope, messages=messages) as events:
                    return events.get_final_completion()
            case _:
                streamed = AsyncOpenAI(**_ENDPOINT).chat.completions.stream(**envelope, messages=messages)
                async with streamed as events:
                    return await events.get_final_completion()

    messages: list[Any] = [{"role": "system", "content": _SYSTEM}]
    for prompt in prompts:
        messages.append({"role": "user", "content": prompt})
        while True:
            message = (await ask(_keep_of_chat(what, messages))).choices[0].message
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            calls = message.tool_calls or []
            texts = [read_note(json.loads(call.function.arguments)["path"]) for call in calls]
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": text}
                for call, text in zip(calls, texts, strict=True)
            ]
            if not calls:
                break
        print(message.content)


def _keep_of_chat(what: str, messages: list[Any]) -> list[Any]:
    """What is sent of the history. The system prompt always is, and no call is without its results."""
    match what:
        case "newest-messages":
            system, newest = messages[:1], messages[1:][-_KEPT_MESSAGES:]
            while newest[0]["role"] == "tool":
                del newest[0]
            return system + newest
        case "newest-results":
            steps = [message for message in messages if message.get("tool_calls")]
            dropped = {name for step in steps[:-_KEPT_STEPS] for name in _list_call_ids(step)}
            return [message for message in messages if not dropped.intersection(_list_call_ids(message))]
        case _:
            return messages


def _list_call_ids(message: dict[str, Any]) -> list[str]:
    """The calls that a message makes or answers."""
    if message["role"] == "tool":
        return [message["tool_call_id"]]
    return [call["id"] for call in message.get("tool_calls", ())]


async def run_anthropic_loop(prompts: Sequence[str], mode: str, what: str) -> None:
    """By hand: sync|async|stream|async-stream all|newest-messages."""
    from anthropic import Anthropic, AsyncAnthropic

    tool = {"name": "read_note", "description": "Read one file.", "input_schema": _PARAMETERS}
    envelope = {"model": _MODEL, "max_tokens": _OUTPUT_TOKENS, "system": _SYSTEM, "tools": [tool]}

    async def ask(messages: list[Any]) -> Any:
        match mode:
            case "sync":
                return Anthropic(**_ENDPOINT).messages.create(**envelope, messages=messages)
            case "async":
                return await AsyncAnthropic(**_ENDPOINT).messages.create(**envelope, messages=messages)
            case "stream":
                with Anthropic(**_ENDPOINT).messages.stream(**envelope, messages=messages) as events:
                    return events.get_final_message()
            case _:
                async with AsyncAnthropic(**_ENDPOINT).messages.stream(
                    **envelope, messages=messages
                ) as events:
                    return await events.get_final_message()

    messages: list[Any] = []
    for prompt in prompts:
        messages.append({"role": "user", "content": prompt})
        while True:
            kept = messages[-_KEPT_MESSAGES:] if what == "newest-messages" else messages
            # It begins with a prompt of the user.
            start = next(place for place, each in enumerate(kept) if isinstance(each["content"], str))
            message = await ask(kept[start:])
            messages.append({"role": "assistant", "content": message.model_dump()["content"]})
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                break
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": read_note(call.input["path"])}
                for call in calls
            ]
            messages.append({"role": "user", "content": results})
        _print_text(message)


def _print_text(message: Any) -> None:
    print("".join(block.text for block in message.content if block.type == "text"))


async def run_anthropic_runner(prompts: Sequence[str], holder: str, mode: str) -> None:
    """The tool runner: thread|runner|unthreaded plain|streaming.

    It sends only what is new, and the server holds the rest. thread: one thread for the whole conversation;
    runner: a new thread for each prompt, as `tool_runner(messages=…)` makes it; unthreaded: all of it.
    """
    from anthropic import Anthropic, beta_tool

    client, stream = Anthropic(**_ENDPOINT), mode == "streaming"
    envelope: dict[str, Any] = {
        "model": _MODEL,
        "max_tokens": _OUTPUT_TOKENS,
        "system": _SYSTEM,
        "tools": [beta_tool(read_note)],
    }
    thread = client.beta.messages.thread(**envelope) if holder == "thread" else None
    messages: list[Any] = []
    for prompt in prompts:
        question = {"role": "user", "content": prompt}
        if thread is not None:
            thread.append(question)
            runner = thread.tool_runner(stream=stream)
        else:
            messages.append(question)
            options = {"thread": False} if holder == "unthreaded" else {}
            runner = client.beta.messages.tool_runner(**envelope, messages=messages, stream=stream, **options)
        for turn in runner:
            message = turn.get_final_message() if stream else turn
            messages.append({"role": "assistant", "content": message.content})
            if (results := runner.generate_tool_call_response()) is not None:
                messages.append(results)
        _print_text(message)


async def run_autogen(prompts: Sequence[str]) -> None:
    """With a buffered context."""
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.model_context import BufferedChatCompletionContext
    from autogen_core.models import ModelFamily
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    abilities = {"vision": False, "function_calling": True, "json_output": False, "structured_output": False}
    model = OpenAIChatCompletionClient(
        model=_MODEL, **_ENDPOINT, model_info={**abilities, "family": ModelFamily.UNKNOWN}
    )
    agent = AssistantAgent(
        "reader",
        model,
        tools=[read_note],
        system_message=_SYSTEM,
        model_context=BufferedChatCompletionContext(_KEPT_MESSAGES),
        max_tool_iterations=_MAX_STEPS,
    )
    for prompt in prompts:
        print((await agent.run(task=prompt)).messages[-1].to_text())


async def run_langchain(prompts: Sequence[str], mode: str) -> None:
    """A graph with a memory: plain|streaming|trimming."""
    from langchain.agents import create_agent
    from langchain.agents.middleware import wrap_model_call
    from langchain_core.messages import trim_messages
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver

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

    model = ChatOpenAI(model=_MODEL, **_ENDPOINT, streaming=mode == "streaming")
    options = {"checkpointer": InMemorySaver(), "middleware": [trim] if mode == "trimming" else []}
    agent = create_agent(model, [read_note], system_prompt=_SYSTEM, **options)
    settings = {"configurable": {"thread_id": "notes"}}
    for prompt in prompts:
        # It wants a thread without an event loop for what is not awaited.
        state = await asyncio.to_thread(agent.invoke, {"messages": [("user", prompt)]}, settings)
        print(state["messages"][-1].content)


async def run_openai_agents(prompts: Sequence[str], api: str, mode: str) -> None:
    """chat|responses plain|streaming|trimming."""
    from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
    from agents.extensions import ToolOutputTrimmer
    from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
    from agents.models.openai_responses import OpenAIResponsesModel
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    kind = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    model = kind(model=_MODEL, openai_client=AsyncOpenAI(**_ENDPOINT))
    agent = Agent(name="Reader", instructions=_SYSTEM, model=model, tools=[function_tool(read_note)])
    # It shortens the tool outputs of all but the last two turns.
    trimmer = ToolOutputTrimmer() if mode == "trimming" else None
    options = {"max_turns": _MAX_STEPS, "run_config": RunConfig(call_model_input_filter=trimmer)}
    history = []
    for prompt in prompts:
        history.append({"role": "user", "content": prompt})
        if mode == "streaming":
            result = Runner.run_streamed(agent, history, **options)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, history, **options)
        history = result.to_input_list()
        print(result.final_output)


async def run_pydantic_ai(prompts: Sequence[str]) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    model = OpenAIChatModel(_MODEL, provider=OpenAIProvider(**_ENDPOINT))
    agent = Agent(model, system_prompt=_SYSTEM, tools=[read_note])
    history = None
    for prompt in prompts:
        limits = UsageLimits(request_limit=None)
        result = await agent.run(prompt, message_history=history, usage_limits=limits)
        history = result.all_messages()
        print(result.output)


async def run_smolagents(prompts: Sequence[str], kind: str) -> None:
    """tools|code. It ends a task by a call of `final_answer`, and writes calls and results down as text."""
    from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

    model = OpenAIModel(model_id=_MODEL, api_base=_ENDPOINT["base_url"], api_key=_KEY)
    make = ToolCallingAgent if kind == "tools" else CodeAgent
    agent = make(tools=[tool(read_note)], model=model, max_steps=_MAX_STEPS, verbosity_level=0)
    for prompt in prompts:
        print(agent.run(prompt, reset=False))


# With the number of words before the prompts.
_AGENTS: dict[str, tuple[Callable[..., Any], int]] = {
    "openai_loop": (run_openai_loop, 2),
    "anthropic_loop": (run_anthropic_loop, 2),
    "anthropic_runner": (run_anthropic_runner, 2),
    "autogen": (run_autogen, 0),
    "langchain": (run_langchain, 1),
    "openai_agents": (run_openai_agents, 2),
    "pydantic_ai": (run_pydantic_ai, 0),
    "smolagents": (run_smolagents, 1),
}
_run, _words = _AGENTS[sys.argv[1]]
asyncio.run(_run(sys.argv[2 + _words :], *sys.argv[2 : 2 + _words]))
