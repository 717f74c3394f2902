"""A stand-in for a model behind Chat Completions, for trying the gateway without one.

It understands nothing: it reads one file after the other, as each names the next, and repeats the lines of
its prompt that begin with "Finding", under headings if these are asked for. So it knows what its prompt holds
and no more, as a model does. Like OpenAI it refuses a prompt that is larger than its window.
"""

import json
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from aiohttp import web

MODEL: Final = "stand-in"
# Room for some twenty turns of the demo's agent.
WINDOW_TOKENS: Final = 8_192

_ADDRESS: Final = "127.0.0.1"
# A rule of thumb, and what the role and the marks around a message take.
_CHARACTERS_PER_TOKEN: Final = 4
_MESSAGE_TOKENS: Final = 4
_FINDING: Final = re.compile(r"Finding \d+: [^\n]+")
_NEXT: Final = re.compile(r"Next file: (\S+)")
# How the gateway asks for a summary.
_USE_HEADINGS: Final = "Use these headings"
_HEADING: Final = re.compile(r"^## .+$", re.MULTILINE)
_GOAL: Final = "Review the storage layer: one finding for each file."
# What it says with each call of its tool.
_THOUGHTS: Final = (
    "I have read the last file from its first line to its last and compared it with what the others said. "
    "The part that matters is noted above; the rest repeats what is known: the same imports, the same checks "
    "of arguments, the same way to report an error. Nothing in it contradicts the earlier findings. "
    "I go on with the next file of the list and look for the same things there: state that is shared, "
    "errors that are swallowed, and numbers that are written twice. "
)

JsonMessage = Mapping[str, Any]


class StandIn:
    """`async with StandIn() as model:` serves it at `model.base_url`."""

    def __init__(self, window_tokens: int = WINDOW_TOKENS) -> None:
        self._window_tokens = window_tokens
        # Messages and tokens of the last prompt of a conversation that it accepted.
        self.last_prompt = (0, 0)
        self._port = 0

    @property
    def base_url(self) -> str:
        return f"http://{_ADDRESS}:{self._port}/v1"

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=1 << 24)
        application.router.add_get("/v1/models", self._list_models)
        application.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, _ADDRESS, 0).start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _list_models(self, _: web.Request) -> web.Response:
        """With the window, as vLLM lists its models."""
        entry = {"id": MODEL, "object": "model", "max_model_len": self._window_tokens}
        return web.json_response({"object": "list", "data": [entry]})

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            body = json.loads(await request.read())
            messages, prompt_tokens = body["messages"], count_tokens(body)
            if not messages:
                raise ValueError("no messages")
        except (ValueError, TypeError, LookupError, AttributeError):
            return _refuse("This is not a request for a chat completion.", None)
        if prompt_tokens + (body.get("max_tokens") or 0) > self._window_tokens:
            return _refuse(
                f"This model's maximum context length is {self._window_tokens} tokens. However, your "
                f"messages resulted in {prompt_tokens} tokens. Please reduce the length of the messages.",
                "context_length_exceeded",
            )
        if body.get("tools"):
            self.last_prompt = (len(messages), prompt_tokens)
        return _respond(body, choose_reply(messages, has_tools=bool(body.get("tools"))), prompt_tokens)


def count_tokens(body: Mapping[str, Any]) -> int:
    """Tokens of a prompt, messages and tools: four characters each."""
    texts = [json.dumps(tool) for tool in body.get("tools") or ()]
    for message in body["messages"]:
        texts += [message.get("content") or "", *map(json.dumps, message.get("tool_calls") or ())]
    characters = sum(map(len, texts))
    return characters // _CHARACTERS_PER_TOKEN + _MESSAGE_TOKENS * len(body["messages"])


def choose_reply(messages: Sequence[JsonMessage], *, has_tools: bool) -> dict[str, Any]:
    """A call of the tool for the file that the last message names as the next one; after the last file, all
    findings in sight. If headings are asked for, a summary under them, which has these findings, too.
    """
    question = messages[-1].get("content") or ""
    found = _NEXT.search(question) if has_tools else None
    if found is None:
        texts = "\n".join(message.get("content") or "" for message in messages)
        findings = list(dict.fromkeys(_FINDING.findall(texts)))
        headings = _HEADING.findall(question.rpartition(_USE_HEADINGS)[2])
        lines = _summarize(headings, findings) if headings else ["This is what I have found:", *findings]
        return {"role": "assistant", "content": "\n".join(lines)}
    function = {"name": "read_file", "arguments": json.dumps({"path": found[1]})}
    call = {"id": f"call_{found[1]}", "type": "function", "function": function}
    return {"role": "assistant", "content": _THOUGHTS, "tool_calls": [call]}


def _summarize(headings: Sequence[str], findings: Sequence[str]) -> list[str]:
    said = {"## Goal": [_GOAL], "## Done": list(findings)}
    return [line for heading in headings for line in (heading, *(said.get(heading) or ["None"]))]


def _respond(body: Mapping[str, Any], reply: Mapping[str, Any], prompt_tokens: int) -> web.Response:
    """A completion, or a stream of three events if that is asked for."""
    completion_tokens = len(json.dumps(reply)) // _CHARACTERS_PER_TOKEN
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
    finish_reason = "tool_calls" if "tool_calls" in reply else "stop"
    head = {"id": "chatcmpl-demo", "created": 0, "model": MODEL}
    if not body.get("stream"):
        choice = {"index": 0, "message": reply, "finish_reason": finish_reason}
        return web.json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
    calls = [{"index": index, **call} for index, call in enumerate(reply.get("tool_calls", ()))]
    delta = {**reply, "tool_calls": calls} if calls else reply
    chunk = {**head, "object": "chat.completion.chunk"}
    events = (
        {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]},
        {**chunk, "choices": [], "usage": usage},
    )
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return web.Response(text=f"{text}data: [DONE]\n\n", content_type="text/event-stream")


def _refuse(text: str, code: str | None) -> web.Response:
    """400 with OpenAI's error object."""
    error = {"message": text, "type": "invalid_request_error", "param": "messages", "code": code}
    return web.json_response({"error": error}, status=400)
