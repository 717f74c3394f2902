"""A strict OpenAI on a real socket: refuses what OpenAI refuses, counts by itself, remembers everything.

Knows nothing of the gateway. What it answers is set from outside (`reply`, `summary`, `intercept`, …).
"""

import asyncio
import base64
import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from aiohttp import web

from tests.toy.counting import TokenCounter
from tests.toy.delivery import Delivery, RawAnswer, send
from tests.toy.reply import Frame, Reply, make_usage, render_error, render_events, render_json, with_room
from tests.toy.summarising import find_facts, has_summary_prompt, make_summary, read_output_limit
from tests.toy.validity import STRICT, Rules, find_violation

Request = dict[str, object]
_CHAT_PATH = "/v1/chat/completions"
_LONGEST_LINE_BYTES = 1 << 16


@dataclass(kw_only=True)
class Seen:
    """One request as it came in, and what became of it. Times are of time.monotonic()."""

    method: str
    path: str  # with its query, exactly as received
    headers: tuple[tuple[str, str], ...]
    body: bytes  # as received, even if compressed
    started: float
    is_chat: bool = False
    is_summary: bool = False
    prompt_tokens: int = 0
    facts: tuple[str, ...] = ()  # of a summary call: the planted facts it could see
    refusal: str | None = None  # what a strict upstream says about it, whatever was answered
    status: int = 0
    ended: float | None = None
    finished: bool = False  # the answer went out as planned
    disconnected: bool = False  # the other side hung up first

    @property
    def request(self) -> Request:
        """The parsed body; {} if it is not a JSON object. Parsed anew each time: a long run stays small."""
        return _read_object(self.body, dict(self.headers)) or {}


@dataclass(frozen=True)
class _Refusal:
    message: str
    code: str | None = None


class ToyUpstream:
    """`async with ToyUpstream(window=16_000, bias=1.2) as toy:` then point a client at `toy.base_url`.

    Every attribute may be changed at any time. An answer is chosen in this order: `intercept`, `raw_answers`,
    the echo for anything but chat, queued `failures` (or `summary_failures`), a refusal, a summary, a reply.
    """

    def __init__(self, *, window: int = 128_000, bias: float = 1.0, rules: Rules = STRICT) -> None:
        self.window = window
        self.windows: dict[str, int] = {}  # by model, where it differs
        self.rules = rules
        self.counter = TokenCounter(bias)
        self.requests: list[Seen] = []
        self.reply: Callable[[Request], Reply] = lambda _: Reply()
        self.delivery = Delivery()
        self.failures: list[RawAnswer] = []
        self.summary: Callable[[Request], Reply] | None = None
        self.summary_tokens: int | None = None
        self.summary_delivery = Delivery()
        self.summary_failures: list[RawAnswer] = []
        self.raw_answers: dict[tuple[str, str], RawAnswer] = {}  # by method and path without query
        self.intercept: Callable[[Seen], RawAnswer | None] = lambda _: None
        self.port = 0

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    @property
    def chats(self) -> list[Seen]:
        """The conversation's own calls, in order of arrival."""
        return [seen for seen in self.requests if seen.is_chat and not seen.is_summary]

    @property
    def summaries(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.is_summary]

    async def __aenter__(self) -> Self:
        server = web.Server(
            self._serve,
            handler_cancellation=True,
            auto_decompress=False,
            max_line_size=_LONGEST_LINE_BYTES,
            max_field_size=_LONGEST_LINE_BYTES,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.content.read()
        seen = self._note(request, body)
        answer = self._choose(seen, request.path)
        seen.status = answer.status
        try:
            response = await send(request, answer)
        except (asyncio.CancelledError, ConnectionError):
            seen.disconnected = True
            raise
        finally:
            seen.ended = time.monotonic()
        seen.finished = True
        return response

    def _note(self, request: web.BaseRequest, body: bytes) -> Seen:
        headers = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in request.raw_headers)
        method, path = request.method, request.raw_path
        seen = Seen(method=method, path=path, headers=headers, body=body, started=time.monotonic())
        if request.method == "POST" and request.path == _CHAT_PATH:
            parsed = _read_object(body, dict(headers))
            seen.is_chat = True
            seen.is_summary = parsed is not None and has_summary_prompt(parsed)
            seen.facts = find_facts(parsed) if parsed is not None and seen.is_summary else ()
            seen.prompt_tokens = self.counter.prompt(parsed) if parsed is not None else 0
        self.requests.append(seen)
        return seen

    def _choose(self, seen: Seen, path: str) -> RawAnswer:
        refusal = self._find_refusal(seen) if seen.is_chat else None
        seen.refusal = refusal.message if refusal else None
        failures = self.summary_failures if seen.is_summary else self.failures
        if (given := self.intercept(seen)) is not None:
            return given
        if (seen.method, path) in self.raw_answers:
            return self.raw_answers[seen.method, path]
        if not seen.is_chat:
            return RawAnswer(pieces=(_render_echo(seen),))
        if failures:
            return failures.pop(0)
        if refusal is not None:
            return RawAnswer(status=400, pieces=(render_error(refusal.message, refusal.code),))
        return self._reply(seen)

    def window_of(self, request: Request) -> int:
        return self.windows.get(str(request.get("model")), self.window)

    def _find_refusal(self, seen: Seen) -> _Refusal | None:
        request = _read_object(seen.body, dict(seen.headers))
        violation = find_violation(request, self.rules)
        if request is None or violation is not None:
            return _Refusal(violation or "")
        output_tokens, window = read_output_limit(request) or 0, self.window_of(request)
        total_tokens = seen.prompt_tokens + output_tokens
        if total_tokens <= window:
            return None
        return _Refusal(_overflow_text(window, seen.prompt_tokens, output_tokens), "context_length_exceeded")

    def _reply(self, seen: Seen) -> RawAnswer:
        request = seen.request
        room_tokens = read_output_limit(request) or self.window_of(request) - seen.prompt_tokens
        if not seen.is_summary:
            reply = self.reply(request)
        elif self.summary is not None:
            reply = self.summary(request)
        else:
            reply = make_summary(request, self.counter, self.summary_tokens)
        delivery = self.summary_delivery if seen.is_summary else self.delivery
        answer = self._render(request, seen, with_room(reply, self.counter, room_tokens))
        return replace(answer, delivery=delivery)

    def _render(self, request: Request, seen: Seen, reply: Reply) -> RawAnswer:
        options = request.get("stream_options")
        frame = Frame(
            number=len(self.requests),
            model=str(request["model"]),
            usage=make_usage(reply, seen.prompt_tokens, self.counter),
            include_usage=isinstance(options, dict) and bool(options.get("include_usage")),
        )
        if not request.get("stream"):
            return RawAnswer(pieces=(render_json(reply, frame),))
        content_type = (("Content-Type", "text/event-stream; charset=utf-8"),)
        return RawAnswer(headers=content_type, pieces=tuple(render_events(reply, frame)), length=False)


def _read_object(body: bytes, headers: dict[str, str]) -> Request | None:
    encoding = next((value for name, value in headers.items() if name.lower() == "content-encoding"), "")
    wbits = {"gzip": 31, "deflate": 15}.get(encoding)
    try:
        parsed = json.loads(body if wbits is None else zlib.decompress(body, wbits))
    except (ValueError, zlib.error, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


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


def _render_echo(seen: Seen) -> bytes:
    echo = {"method": seen.method, "path": seen.path, "headers": seen.headers}
    return json.dumps(echo | {"body": base64.b64encode(seen.body).decode()}).encode()
