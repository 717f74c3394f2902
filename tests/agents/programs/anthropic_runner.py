"""The Anthropic SDK's tool runner: anthropic_runner.py thread|runner|unthreaded plain|streaming PROMPT...

It sends only what is new, and the server holds the rest. thread: one thread for the whole conversation;
runner: a new thread for each prompt, as `tool_runner(messages=…)` makes it; unthreaded: the whole history.
"""

import os
import sys
from pathlib import Path
from typing import Any

from anthropic import Anthropic, beta_tool

_OUTPUT_TOKENS = 2_000


@beta_tool
def read_note(path: str) -> str:
    """Read one file."""
    return Path(path).read_text("utf-8")


def main(holder: str, mode: str, prompts: list[str]) -> None:
    client = Anthropic(base_url=os.environ["GATEWAY_URL"], api_key=os.environ["GATEWAY_KEY"])
    envelope: dict[str, Any] = {
        "model": os.environ["GATEWAY_MODEL"],
        "max_tokens": _OUTPUT_TOKENS,
        "system": "You read notes and report what they say.",
        "tools": [read_note],
    }
    stream = mode == "streaming"
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
        print("".join(block.text for block in message.content if block.type == "text"))


main(sys.argv[1], sys.argv[2], sys.argv[3:])
