"""Chat Completions, as the scripted agent writes it and the toy answers it."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.toy.counting import TokenCounter
from tests.toy.delivery import STREAM_HEADERS, RawAnswer
from tests.toy.dialect import Asked, Request, Talk
from tests.toy.memory import Memory
from tests.toy.refusal import Refusal
from tests.toy.reply import Frame, Reply, make_usage, read_object, render_error, render_events, render_json
from tests.toy.validity import Rules, find_violation


@dataclass(frozen=True)
class Chat:
    path: str = "/chat/completions"
    output_key: str = "max_tokens"

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def envelope(self, talk: Talk, fields: Mapping[str, object]) -> Request:
        tools = {"tools": list(talk.tools)} if talk.tools else {}
        return {"model": talk.model, "messages": [*talk.leading, *talk.messages], **tools, **fields}

    def items(self, request: Mapping[str, object]) -> list[object]:
        messages = request.get("messages")
        return list(messages) if isinstance(messages, list) else []

    def count(self, counter: TokenCounter, request: Mapping[str, object]) -> int:
        return counter.prompt(request)

    def recall(self, request: Request, memory: Memory) -> Request | Refusal:
        return request

    def find_violation(self, request: object, headers: Mapping[str, str], rules: Rules) -> Refusal | None:
        violation = find_violation(request, rules)
        return None if violation is None else Refusal(message=violation)

    def overflow(self, window: int, prompt_tokens: int, output_tokens: int) -> Refusal:
        words = _overflow_text(window, prompt_tokens, output_tokens)
        return Refusal(message=words, code="context_length_exceeded", param="messages")

    def refuse(self, refusal: Refusal) -> RawAnswer:
        return RawAnswer(status=refusal.status, pieces=(_render_refusal(refusal),))

    def refuse_in_stream(self, refusal: Refusal, asked: Asked) -> RawAnswer:
        event = b"data: " + _render_refusal(refusal) + b"\n\n"
        return RawAnswer(headers=STREAM_HEADERS, pieces=(event,), length=False)

    def answer(self, asked: Asked, reply: Reply) -> RawAnswer:
        options = asked.request.get("stream_options")
        frame = Frame(
            number=asked.number,
            model=str(asked.request["model"]),
            usage=make_usage(reply, asked.prompt_tokens, asked.counter),
            include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        )
        if not asked.request.get("stream"):
            return RawAnswer(pieces=(render_json(reply, frame),))
        return RawAnswer(headers=STREAM_HEADERS, pieces=tuple(render_events(reply, frame)), length=False)

    def is_whole(self, body: bytes) -> bool:
        if (answer := read_object(body)) is not None:
            return bool(answer.get("choices")) and "error" not in answer
        return body.rstrip().endswith(b"data: [DONE]") and b'data: {"error"' not in body

    def read_response_id(self, body: bytes) -> str | None:
        return None


CHAT = Chat()


def _render_refusal(refusal: Refusal) -> bytes:
    return render_error(refusal.message, refusal.code, refusal.kind)


def _overflow_text(window: int, prompt_tokens: int, output_tokens: int) -> str:
    """OpenAI's own words, with and without a requested output."""
    start = f"This model's maximum context length is {window} tokens. However, "
    if not output_tokens:
        problem = f"your messages resulted in {prompt_tokens} tokens."
        return f"{start}{problem} Please reduce the length of the messages."
    return (
        f"{start}you requested {prompt_tokens + output_tokens} tokens ({prompt_tokens} in the messages, "
        f"{output_tokens} in the completion). Please reduce the length of the messages or completion."
    )
