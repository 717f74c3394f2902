"""Anthropic Messages, as the scripted agent writes it and the toy answers it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from tests.toy import counting_messages, reply_messages, validity_messages
from tests.toy.counting import TokenCounter
from tests.toy.counting_messages import without_marks
from tests.toy.delivery import STREAM_HEADERS, RawAnswer
from tests.toy.dialect import Asked, Message, Request, Talk
from tests.toy.memory import Memory
from tests.toy.refusal import Refusal
from tests.toy.reply import Reply, read_events, read_object, read_reply, render_named
from tests.toy.reply_messages import Block, Frame
from tests.toy.threads import BETA as THREADS_BETA
from tests.toy.threads import find_violation as find_thread_violation
from tests.toy.validity import Rules
from tests.toy.validity_messages import read_blocks

_MARK = {"cache_control": {"type": "ephemeral"}}
# Required by the format. Small models of Anthropic allow no more.
_DEFAULT_OUTPUT_TOKENS = 4_096
_MIN_THINKING_TOKENS = 1_024
_VERSION = "anthropic-version"
_BETA = "anthropic-beta"
_INSTRUCTIONS_BETA = "mid-conversation-system-2026-04-07"
# Messages of both sides: each fifth turn.
_INSTRUCTS_EVERY = 10
_ERROR_KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}


@dataclass(frozen=True, kw_only=True)
class Messages:
    """marks: `cache_control` on the system prompt and on the newest block, as Claude Code has it.

    plain: a text alone is a string instead of a block, so that it cannot have a mark.
    threads: the upstream holds the history; each request brings only what is new.
    instructs: now and then a system message stands behind the user's, and how much to think is left to the
    model, as Claude Code does with models that it takes for the newest.
    """

    marks: bool = True
    plain: bool = False
    instructs: bool = False
    threads: bool = False
    path: str = "/messages"
    output_key: str = "max_tokens"

    def headers(self, key: str) -> dict[str, str]:
        betas = [_INSTRUCTIONS_BETA] if self.instructs else []
        betas += [THREADS_BETA] if self.threads else []
        beta = {_BETA: ",".join(betas)} if betas else {}
        return {"x-api-key": key, _VERSION: "2023-06-01", **beta}

    def envelope(self, talk: Talk, fields: Mapping[str, object]) -> Request:
        """Thinking is requested if the session has it and the output has room for it."""
        if self.threads and talk.response_id is not None:
            talk = replace(talk, messages=talk.messages[talk.known :])
        leading = [block for message in talk.leading for block in _render_content(message.get("content"))]
        *earlier, newest = self._instruct(_merge(talk))
        messages = [*map(self._write, earlier), self._write(self._mark(newest))]
        system = self._write(self._mark({"content": leading}))["content"]
        given: Request = {"max_tokens": _DEFAULT_OUTPUT_TOKENS, **fields}
        tools = {"tools": [_flatten(tool) for tool in talk.tools]} if talk.tools else {}
        head = {"model": talk.model, **({"system": system} if system else {}), "messages": messages}
        if self.threads and talk.response_id is not None:
            head = {"model": talk.model, "messages": messages}
            tools = {}
        thinking = {"thinking": {"type": "adaptive"}} if self.instructs else _think(talk, given)
        return {**head, **tools, **thinking, **self._name_thread(talk), **given}

    def _name_thread(self, talk: Talk) -> Request:
        if not self.threads:
            return {}
        if talk.response_id is None:
            return {"thread": {"type": "create"}}
        return {"thread": {"type": "continue", "previous_message_id": talk.response_id}}

    def _instruct(self, merged: Iterator[Block]) -> Iterator[Block]:
        """Always at the same places of a history: it only grows."""
        for index, message in enumerate(merged):
            yield message
            if self.instructs and message["role"] == "user" and index % _INSTRUCTS_EVERY == 0:
                text = f"From now on mind rule {index}: say what you are going to do before you do it."
                yield {"role": "system", "content": [{"type": "text", "text": text}]}

    def _mark(self, message: Block) -> Block:
        blocks = message["content"]
        assert isinstance(blocks, list)
        is_marked = self.marks and not self.plain
        return (
            message | {"content": [*blocks[:-1], *(block | _MARK for block in blocks[-1:])]}
            if is_marked
            else message
        )

    def _write(self, message: Block) -> Block:
        match message["content"]:
            case [{"type": "text", "text": text}] if self.plain:
                return message | {"content": text}
            case _:
                return message

    def items(self, request: Mapping[str, object]) -> list[object]:
        """Every block with its role, so that it does not matter which message it stands in."""
        messages = request.get("messages")
        system = [["system", without_marks(block)] for block in read_blocks(request.get("system"))]
        said = [
            [message.get("role"), without_marks(block)]
            for message in (messages if isinstance(messages, list) else ())
            for block in read_blocks(message.get("content"))
        ]
        return [*system, *said]

    def count(self, counter: TokenCounter, request: Mapping[str, object]) -> int:
        return counting_messages.count_prompt(counter, request)

    def recall(self, request: Request, memory: Memory) -> Request | Refusal:
        return memory.threads.recall(request)

    def find_violation(self, request: object, headers: Mapping[str, str], rules: Rules) -> Refusal | None:
        if _VERSION not in headers:
            return Refusal(message=f"{_VERSION}: header is required")
        betas = headers.get(_BETA, "")
        may_instruct = rules.later_system or _INSTRUCTIONS_BETA in betas
        violation = find_thread_violation(request, betas)
        violation = violation or validity_messages.find_violation(
            request, replace(rules, later_system=may_instruct)
        )
        return None if violation is None else Refusal(message=violation)

    def overflow(self, window: int, prompt_tokens: int, output_tokens: int) -> Refusal:
        if prompt_tokens > window:
            return Refusal(message=f"prompt is too long: {prompt_tokens} tokens > {window} maximum")
        problem = "input length and `max_tokens` exceed context limit"
        remedy = "decrease input length or `max_tokens` and try again"
        return Refusal(message=f"{problem}: {prompt_tokens} + {output_tokens} > {window}, {remedy}")

    def refuse(self, refusal: Refusal) -> RawAnswer:
        return RawAnswer(status=refusal.status, pieces=(json.dumps(_make_error(refusal)).encode(),))

    def refuse_in_stream(self, refusal: Refusal, asked: Asked) -> RawAnswer:
        start = reply_messages.render_start(_make_frame(asked, Reply()))
        pieces = (*start, render_named(_make_error(refusal)))
        return RawAnswer(headers=STREAM_HEADERS, pieces=pieces, length=False)

    def answer(self, asked: Asked, reply: Reply) -> RawAnswer:
        frame, thinking = _make_frame(asked, reply), asked.request.get("thinking")
        is_thinking = isinstance(thinking, dict) and thinking.get("type") != "disabled"
        blocks = reply_messages.make_blocks(reply)
        shown = [block for block in blocks if is_thinking or block["type"] != "thinking"]
        asked.memory.threads.keep(frame.message_id, asked.request, shown)
        if not asked.request.get("stream"):
            return RawAnswer(pieces=(reply_messages.render_json(reply, shown, frame),))
        events = reply_messages.render_events(reply, shown, frame)
        return RawAnswer(headers=STREAM_HEADERS, pieces=tuple(events), length=False)

    def is_whole(self, body: bytes) -> bool:
        if (message := read_object(body)) is not None:
            return message.get("type") == "message"
        kinds = [event.get("type") for event in read_events(body)]
        return kinds[-1:] == ["message_stop"] and "error" not in kinds

    def read_response_id(self, body: bytes) -> str | None:
        """None, too, for a reply that was cut: the agent's history holds all of it."""
        return _read_message_id(body)


MESSAGES = Messages()


def answer_count(request: object, counter: TokenCounter) -> RawAnswer:
    """`/messages/count_tokens`, by the toy's own counting; a prompt may be larger than any window."""
    violation = validity_messages.find_count_violation(request)
    if violation is not None or not isinstance(request, dict):
        return MESSAGES.refuse(Refusal(message=str(violation)))
    tokens = counting_messages.count_prompt(counter, request)
    return RawAnswer(pieces=(json.dumps({"input_tokens": tokens}).encode(),))


def _merge(talk: Talk) -> Iterator[Block]:
    """Consecutive messages of one side become one; empty ones are left out."""
    said = [(_side(message), _render_blocks(message)) for message in talk.messages]
    for side, group in groupby((part for part in said if part[1]), key=lambda part: part[0]):
        yield {"role": side, "content": [block for _, blocks in group for block in blocks]}


def _side(message: Message) -> str:
    return "assistant" if message["role"] == "assistant" else "user"


def _render_blocks(message: Message) -> list[Block]:
    if message["role"] == "assistant":
        return reply_messages.make_blocks(read_reply(message))
    if message["role"] != "tool":
        return _render_content(message.get("content"))
    content, call_id = message.get("content"), reply_messages.make_id(str(message["tool_call_id"]))
    given = content if isinstance(content, str) else _render_content(content)
    return [{"type": "tool_result", "tool_use_id": call_id, "content": given}]


def _render_content(content: object) -> list[Block]:
    """Chat's text or parts as blocks; empty ones are left out."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    parts = content if isinstance(content, list) else []
    rendered = [_render_part(part) for part in parts]
    return [block for block in rendered if block["type"] != "text" or str(block["text"]).strip()]


def _render_part(part: Mapping[str, object]) -> Block:
    image = part.get("image_url")
    if isinstance(image, dict):
        return {"type": "image", "source": {"type": "url", "url": image["url"]}}
    return {"type": "text", "text": part.get("text", "")}


def _flatten(tool: Message) -> Block:
    function = tool.get("function")
    if not isinstance(function, dict):
        return dict(tool)
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    described = {"description": function["description"]} if function.get("description") else {}
    return {"name": function["name"], **described, "input_schema": schema}


def _think(talk: Talk, given: Request) -> Request:
    most = given["max_tokens"]
    if not talk.thinks or not isinstance(most, int) or most <= _MIN_THINKING_TOKENS:
        return {}
    budget = max(_MIN_THINKING_TOKENS, most // 2)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def _make_error(refusal: Refusal) -> Block:
    kind = _ERROR_KINDS.get(refusal.status, refusal.kind)
    error: Block = {"type": kind, "message": refusal.message}
    if refusal.details is not None:
        error["details"] = dict(refusal.details)
    return {"type": "error", "error": error, "request_id": "req_toy"}


def _read_message_id(body: bytes) -> str | None:
    whole = read_object(body)
    events = [whole] if whole is not None else read_events(body)
    if any(_find_stop(event) == "max_tokens" for event in events):
        return None
    message = events[0] if whole is not None else events[0].get("message")
    return str(message["id"]) if isinstance(message, dict) else None


def _find_stop(event: Mapping[str, object]) -> object:
    delta = event.get("delta")
    return delta.get("stop_reason") if isinstance(delta, dict) else event.get("stop_reason")


def _make_frame(asked: Asked, reply: Reply) -> Frame:
    usage = reply_messages.make_usage(reply, asked.request, asked.prompt_tokens, asked.counter)
    return Frame(
        message_id=f"msg_{asked.number:08d}",
        model=str(asked.request["model"]),
        usage=usage,
        delta_chars=reply.delta_chars,
    )
