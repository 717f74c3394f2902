"""The three wire formats as a parameter: for each, conversations that are drawn, and replies as bytes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from gateway.conversations.reading import Received
from gateway.wire.format import Format
from gateway.wire.registry import FORMATS
from tests.builders import messages, responses
from tests.builders.chat import read
from tests.decisions import builders as chat
from tests.toy import validity, validity_messages, validity_responses
from tests.toy.counting import TokenCounter
from tests.toy.dialect import Asked, Dialect
from tests.toy.dialects import find_dialect
from tests.toy.memory import Memory
from tests.toy.reply import Reply, ToolCall

JSON = dict[str, Any]
TASK = "Fix the failing test."
# Fields of requests in Messages and in Responses that show how a model thinks.
THINKING: JSON = {
    "thinking": {"type": "enabled", "budget_tokens": 1_024},
    "include": ["reasoning.encrypted_content"],
}
LONG = "line of a log; " * 60


@dataclass(frozen=True, kw_only=True, repr=False)
class Shape:
    """array: the key of the messages."""

    wire: Format
    array: str
    bodies: Callable[..., st.SearchStrategy[bytes]]
    conversations: Callable[..., st.SearchStrategy[list[JSON]]]
    read: Callable[..., Received]
    render: Callable[[Sequence[JSON], int], bytes]
    find_violation: Callable[..., object]
    # A task, a call, its result, a word of the model, and the user's next one.
    talk: tuple[JSON, ...]

    @property
    def name(self) -> str:
        return self.wire.name

    def load(self, body: bytes) -> JSON:
        found: JSON = json.loads(body)
        return found

    def values(self, body: bytes) -> list[Any]:
        """The messages of a body."""
        found: list[Any] = json.loads(body)[self.array]
        return found

    @property
    def dialect(self) -> Dialect:
        found = find_dialect(self.wire.path)
        assert found is not None
        return found

    def answer(self, reply: Reply, number: int = 1, **fields: Any) -> bytes:
        """A response of the toy, of 100 tokens of prompt. number: of the answer, which its ids hold."""
        asked = Asked(
            request={"model": "toy", "messages": [], "input": [], "tools": []} | fields,
            number=number,
            prompt_tokens=100,
            counter=TokenCounter(),
            memory=Memory(),
        )
        return self.dialect.answer(asked, reply).body

    def stream(self, reply: Reply, number: int = 1) -> bytes:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return self.answer(reply, number, **options, **THINKING)


def say(role: str, text: str) -> JSON:
    return {"role": role, "content": text}


_CHAT_CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"path":"a"}'}}
_RESPONSES_CALL = {"type": "function_call", "call_id": "a", "name": "look", "arguments": '{"path":"a"}'}
SHAPES: Mapping[str, Shape] = {
    "chat": Shape(
        wire=FORMATS["chat"],
        array="messages",
        bodies=chat.bodies,
        conversations=chat.conversations,
        read=read,
        render=chat.render,
        find_violation=validity.find_violation,
        talk=(
            say("user", TASK),
            {"role": "assistant", "content": None, "tool_calls": [_CHAT_CALL]},
            {"role": "tool", "tool_call_id": "a", "content": LONG},
            say("assistant", "Done."),
            say("user", "More."),
        ),
    ),
    "messages": Shape(
        wire=FORMATS["messages"],
        array="messages",
        bodies=messages.bodies,
        conversations=messages.conversations,
        read=messages.read,
        render=messages.render,
        find_violation=validity_messages.find_violation,
        talk=(
            say("user", TASK),
            {"role": "assistant", "content": [messages.use(path="a")]},
            {"role": "user", "content": [messages.result(content=LONG)]},
            say("assistant", "Done."),
            say("user", "More."),
        ),
    ),
    "responses": Shape(
        wire=FORMATS["responses"],
        array="input",
        bodies=responses.bodies,
        conversations=responses.conversations,
        read=responses.read,
        render=responses.render,
        find_violation=validity_responses.find_violation,
        talk=(
            say("user", TASK),
            _RESPONSES_CALL,
            {"type": "function_call_output", "call_id": "a", "output": LONG},
            say("assistant", "Done."),
            say("user", "More."),
        ),
    ),
}
in_each_format = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
# Text, thoughts and two calls, with letters that take several bytes, and pieces that end inside of words.
A_REPLY = Reply(
    text="So far: é \u2028 日本語 😀 “data: [DONE]”",
    thinking="I look first.",
    tool_calls=(
        ToolCall(id="call_1", name="look", arguments='{"path":"a b","n":1.10}'),
        ToolCall(id="call_2", name="look", arguments="{}"),
    ),
    delta_chars=7,
)
A_TEXT = Reply(text=f"{A_REPLY.text}\r\n\r\nline", thinking="I look first.", delta_chars=5)
A_WORD = Reply(text="é 😀", delta_chars=2)
