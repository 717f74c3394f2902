"""OpenAI Responses, as the scripted agent writes it and the toy answers it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.toy import counting_responses, reply_responses, validity_responses
from tests.toy.counting import TokenCounter
from tests.toy.delivery import STREAM_HEADERS, RawAnswer
from tests.toy.dialect import Asked, Message, Request, Talk
from tests.toy.memory import Memory, read_items
from tests.toy.refusal import Refusal
from tests.toy.reply import Reply, read_events, read_object, read_reply
from tests.toy.reply_responses import Frame, Item
from tests.toy.validity import Rules

# whole: everything every time, nothing stored upstream · references: the model's items by their ids ·
# previous: only new items, with the id of the response before
History = Literal["whole", "references", "previous"]
_SECRETS = "reasoning.encrypted_content"
_ENDS = frozenset({"completed", "incomplete"})


@dataclass(frozen=True, kw_only=True)
class Responses:
    """typed: messages have a `type` and parts. ids: the model's items are sent back with their ids. Both are
    habits of the agent; the toy understands all of them.
    """

    history: History = "whole"
    typed: bool = True
    ids: bool = True
    path: str = "/responses"
    output_key: str = "max_output_tokens"

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def envelope(self, talk: Talk, fields: Mapping[str, object]) -> Request:
        given = talk.response_id is not None and self.history == "previous"
        previous = {"previous_response_id": talk.response_id} if given else {}
        system = "\n\n".join(str(message["content"]) for message in talk.leading)
        kept: dict[str, object] = {} if self.history != "whole" else {"store": False, "include": [_SECRETS]}
        tools = {"tools": [_flatten(tool) for tool in talk.tools]} if talk.tools else {}
        head = {"model": talk.model} | ({"instructions": system} if system else {}) | previous
        items = [*self._render(talk, talk.known if given else 0)]
        return {**head, "input": items, **tools, **kept, **fields}

    def _render(self, talk: Talk, start: int) -> Iterator[Item]:
        for index, message in enumerate(talk.messages[start:], start):
            if message["role"] == "assistant":
                output = reply_responses.make_output(read_reply(message), talk.mark(index))
                yield from map(self._render_own, output)
            else:
                yield self._render_other(message)

    def _render_own(self, item: Item) -> Item:
        if self.history == "references" and item["type"] != "function_call":
            return {"type": "item_reference", "id": item["id"]}
        kept = item if self.ids else {key: value for key, value in item.items() if key != "id"}
        if item["type"] == "message" and not self.typed:
            return {key: value for key, value in kept.items() if key != "type"}
        return kept

    def _render_other(self, message: Message) -> Item:
        content = _render_content(message.get("content"))
        if message["role"] == "tool":
            return {
                "type": "function_call_output",
                "call_id": message["tool_call_id"],
                "output": content or "",
            }
        if not self.typed:
            return {"role": message["role"], "content": content}
        parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
        return {"type": "message", "role": message["role"], "content": parts}

    def items(self, request: Mapping[str, object]) -> list[object]:
        """Instructions, then the items, messages in one of their many spellings."""
        return [request.get("instructions"), *map(_normalise, read_items(request))]

    def count(self, counter: TokenCounter, request: Mapping[str, object]) -> int:
        return counting_responses.count_prompt(counter, request)

    def recall(self, request: Request, memory: Memory) -> Request | Refusal:
        return memory.recall(request)

    def find_violation(self, request: object, headers: Mapping[str, str], rules: Rules) -> Refusal | None:
        return validity_responses.find_violation(request, rules)

    def overflow(self, window: int, prompt_tokens: int, output_tokens: int) -> Refusal:
        words = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return Refusal(message=words, code="context_length_exceeded", param="input")

    def refuse(self, refusal: Refusal) -> RawAnswer:
        return RawAnswer(
            status=refusal.status, pieces=(json.dumps({"error": _make_error(refusal)}).encode(),)
        )

    def refuse_in_stream(self, refusal: Refusal, asked: Asked) -> RawAnswer:
        events = reply_responses.render_failed(_make_error(refusal), _make_frame(asked, Reply()))
        return RawAnswer(headers=STREAM_HEADERS, pieces=tuple(events), length=False)

    def answer(self, asked: Asked, reply: Reply) -> RawAnswer:
        request, frame = asked.request, _make_frame(asked, reply)
        output = reply_responses.make_output(reply, reply.mark or str(asked.number))
        asked.memory.note_reasons(output)
        asked.memory.extend_conversation(request, output)
        if request.get("store", True):
            asked.memory.keep(frame.response_id, read_items(request), output)
        shown = output if _wants_secrets(request) else [_without_secret(item) for item in output]
        if not request.get("stream"):
            return RawAnswer(pieces=(json.dumps(frame.final(reply, shown), ensure_ascii=False).encode(),))
        events = reply_responses.render_events(reply, shown, frame)
        return RawAnswer(headers=STREAM_HEADERS, pieces=tuple(events), length=False)

    def is_whole(self, body: bytes) -> bool:
        return _read_response(body).get("status") in _ENDS

    def read_response_id(self, body: bytes) -> str | None:
        """None, too, for an answer that was cut: its calls are missing."""
        response = _read_response(body)
        return str(response["id"]) if response.get("status") == "completed" else None


RESPONSES = Responses()


def answer_conversation(request: object, memory: Memory) -> RawAnswer:
    """`POST /conversations`, which may bring the first items."""
    items = request.get("items") if isinstance(request, dict) else None
    name = memory.create_conversation(items if isinstance(items, list) else [])
    conversation = {"id": name, "object": "conversation", "created_at": 1_700_000_000, "metadata": {}}
    return RawAnswer(pieces=(json.dumps(conversation).encode(),))


def _flatten(tool: Message) -> Item:
    """Chat's function object, one level up."""
    function = tool.get("function")
    return {"type": "function", **function} if isinstance(function, dict) else dict(tool)


def _render_content(content: object) -> object:
    """Chat's parts as input parts."""
    if not isinstance(content, list):
        return content
    return [_render_part(part) for part in content]


def _render_part(part: Mapping[str, object]) -> Item:
    image = part.get("image_url")
    if isinstance(image, dict):
        return {"type": "input_image", "image_url": image["url"]}
    return {"type": "input_text", "text": part.get("text", "")}


def _normalise(item: object) -> object:
    if not isinstance(item, dict) or "role" not in item:
        return item
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"role": item["role"], "content": parts}


def _make_error(refusal: Refusal) -> Item:
    return {
        "message": refusal.message,
        "type": refusal.kind,
        "param": refusal.param,
        "code": refusal.code,
    }


def _make_frame(asked: Asked, reply: Reply) -> Frame:
    usage = reply_responses.make_usage(reply, asked.prompt_tokens, asked.counter)
    name = f"resp_{asked.number:08d}"
    return Frame(response_id=name, request=asked.request, usage=usage, delta_chars=reply.delta_chars)


def _wants_secrets(request: Request) -> bool:
    include = request.get("include")
    return isinstance(include, list) and _SECRETS in include


def _without_secret(item: Item) -> Item:
    return {key: value for key, value in item.items() if key != "encrypted_content"}


def _read_response(body: bytes) -> Mapping[str, object]:
    """The response in its last state; {} if there is none or it is an error."""
    if (parsed := read_object(body)) is not None:
        return {} if parsed.get("error") else parsed
    events: Sequence[Mapping[str, object]] = read_events(body)
    last = events[-1] if events else {}
    response = last.get("response")
    return response if isinstance(response, dict) and not response.get("error") else {}
