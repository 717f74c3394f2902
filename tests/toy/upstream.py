"""A strict provider on a real socket. It refuses what OpenAI and Anthropic refuse, counts with its own
tokenizer and keeps every request. It speaks Chat Completions, Responses and Messages.

Tests set its answers (`reply`, `summary`, `intercept`, …).
"""

import asyncio
import base64
import json
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import TracebackType
from typing import Self

from aiohttp import web

from tests.toy.counting import TokenCounter
from tests.toy.delivery import Delivery, RawAnswer, send
from tests.toy.dialect import Asked, Dialect
from tests.toy.dialect import Request as Request
from tests.toy.dialects import DIALECTS
from tests.toy.memory import Memory
from tests.toy.messages import answer_count
from tests.toy.refusal import Refusal
from tests.toy.reply import Reply, with_room
from tests.toy.responses import answer_conversation
from tests.toy.summarising import find_facts, has_summary_prompt, make_summary, read_output_limit
from tests.toy.validity import STRICT, Rules

_DIALECTS = {f"/v1{dialect.path}": dialect for dialect in DIALECTS}
_COUNT_PATH = "/v1/messages/count_tokens"
_CONVERSATIONS_PATH = "/v1/conversations"
_LONGEST_LINE_BYTES = 1 << 16


@dataclass(kw_only=True)
class Seen:
    """One received request and its outcome. Times are of time.monotonic()."""

    method: str
    path: str  # with its query, exactly as received
    headers: tuple[tuple[str, str], ...]
    body: bytes  # as received, even if compressed
    started: float
    port: int = 0  # that it was sent from
    dialect: Dialect | None = None
    recalled: Request | None = None  # the request with its references filled in, if it had any
    is_summary: bool = False
    prompt_tokens: int = 0
    facts: tuple[str, ...] = ()  # of a summary call: the planted facts it could see
    refusal: str | None = None  # why a strict upstream refuses it, even if another response was sent
    status: int = 0
    ended: float | None = None
    finished: bool = False  # the answer went out as planned
    disconnected: bool = False  # the other side hung up first

    @property
    def is_chat(self) -> bool:
        """A conversation's call, in any of the formats."""
        return self.dialect is not None

    @property
    def whole(self) -> Request:
        """The request with everything that it refers to filled in."""
        return self.request if self.recalled is None else self.recalled

    @property
    def request(self) -> Request:
        """The parsed body, or {} if it is not a JSON object. It is not kept: a long run stays small."""
        return self.parsed or {}

    @property
    def parsed(self) -> Request | None:
        encodings = [value for name, value in self.headers if name.lower() == "content-encoding"]
        return _read_object(self.body, encodings[0] if encodings else "")


class ToyUpstream:
    """`async with ToyUpstream(window=16_000, bias=1.2) as toy:` then point a client at `toy.base_url`.

    Every attribute may be changed at any time. An answer is chosen in this order: `intercept`, `raw_answers`,
    the echo for anything but a conversation's call, queued `failures` (or `summary_failures`), a refusal, a
    summary, a reply.
    """

    def __init__(self, *, window: int = 128_000, bias: float = 1.0, rules: Rules = STRICT) -> None:
        self._usual = (window, bias, rules)
        self.port = 0
        self.reset()

    def reset(self) -> None:
        """As new, on the same port: for the next test."""
        window, bias, rules = self._usual
        self.window = window
        self.windows: dict[str, int] = {}  # by model, if it differs
        self.rules = rules
        self.counter = TokenCounter(bias)
        self.requests: list[Seen] = []
        self.reply: Callable[[Request], Reply] = lambda _: Reply()
        # The share of a conversation's prompt that is reported as cached.
        self.cached_share: Callable[[Request], float] | None = None
        self.delivery = Delivery()
        self.failures: list[RawAnswer] = []
        self.summary: Callable[[Request], Reply] | None = None
        self.summary_tokens: int | None = None
        self.summary_delivery = Delivery()
        self.summary_failures: list[RawAnswer] = []
        self.raw_answers: dict[tuple[str, str], RawAnswer] = {}  # by method and path without query
        self.intercept: Callable[[Seen], RawAnswer | None] = lambda _: None
        self.refuses_in_stream = False  # streams are refused after a status of 200
        self.memory = Memory()

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
            self.memory.threads.settle(seen.request)
        seen.finished = True
        return response

    def _note(self, request: web.BaseRequest, body: bytes) -> Seen:
        headers = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in request.raw_headers)
        method, path = request.method, request.raw_path
        seen = Seen(method=method, path=path, headers=headers, body=body, started=time.monotonic())
        if request.transport is not None:
            seen.port = request.transport.get_extra_info("peername")[1]
        if request.method == "POST" and (dialect := _DIALECTS.get(request.path)) is not None:
            seen.dialect = dialect
            self._read(seen, dialect)
        self.requests.append(seen)
        return seen

    def _read(self, seen: Seen, dialect: Dialect) -> None:
        parsed = seen.parsed
        recalled = None if parsed is None else dialect.recall(parsed, self.memory)
        if parsed is None or recalled is None or isinstance(recalled, Refusal):
            return
        seen.recalled = recalled if recalled is not parsed else None
        seen.is_summary = has_summary_prompt(recalled)
        seen.facts = find_facts(recalled) if seen.is_summary else ()
        seen.prompt_tokens = dialect.count(self.counter, recalled)

    def _choose(self, seen: Seen, path: str) -> RawAnswer:
        refusal = self._find_refusal(seen, seen.dialect) if seen.dialect else None
        seen.refusal = refusal.message if refusal else None
        failures = self.summary_failures if seen.is_summary else self.failures
        if (given := self.intercept(seen)) is not None:
            return given
        if (seen.method, path) in self.raw_answers:
            return self.raw_answers[seen.method, path]
        if seen.method == "POST" and path == _COUNT_PATH:
            return answer_count(seen.parsed, self.counter)
        if seen.method == "POST" and path == _CONVERSATIONS_PATH:
            return answer_conversation(seen.parsed, self.memory)
        if seen.dialect is None:
            return RawAnswer(pieces=(_render_echo(seen),))
        if failures:
            return failures.pop(0)
        if refusal is not None:
            return self._refuse(seen, seen.dialect, refusal)
        return self._reply(seen, seen.dialect)

    def window_of(self, request: Request) -> int:
        return self.windows.get(str(request.get("model")), self.window)

    def _find_refusal(self, seen: Seen, dialect: Dialect) -> Refusal | None:
        parsed = seen.parsed
        recalled = parsed if parsed is None else dialect.recall(parsed, self.memory)
        if isinstance(recalled, Refusal):
            return recalled
        headers = {name.lower(): value for name, value in seen.headers}
        violation = dialect.find_violation(recalled, headers, self.rules)
        if recalled is None or violation is not None:
            return violation
        output_tokens, window = read_output_limit(recalled) or 0, self.window_of(recalled)
        if seen.prompt_tokens + output_tokens <= window:
            return None
        return dialect.overflow(window, seen.prompt_tokens, output_tokens)

    def _refuse(self, seen: Seen, dialect: Dialect, refusal: Refusal) -> RawAnswer:
        request = seen.request
        if not self.refuses_in_stream or not request.get("stream"):
            return dialect.refuse(refusal)
        return dialect.refuse_in_stream(refusal, self._ask(seen, request))

    def _reply(self, seen: Seen, dialect: Dialect) -> RawAnswer:
        request = seen.whole
        room_tokens = read_output_limit(request) or self.window_of(request) - seen.prompt_tokens
        if not seen.is_summary:
            reply = self.reply(request)
        elif self.summary is not None:
            reply = self.summary(request)
        else:
            reply = make_summary(request, self.counter, self.summary_tokens)
        delivery = self.summary_delivery if seen.is_summary else self.delivery
        reply = with_room(self._with_cache(reply, seen), self.counter, room_tokens)
        answer = dialect.answer(self._ask(seen, request), reply)
        return replace(answer, delivery=delivery)

    def _with_cache(self, reply: Reply, seen: Seen) -> Reply:
        if self.cached_share is None:
            return reply
        return replace(reply, cached_tokens=int(self.cached_share(seen.whole) * seen.prompt_tokens))

    def _ask(self, seen: Seen, request: Request) -> Asked:
        return Asked(
            request=request,
            number=len(self.requests),
            prompt_tokens=seen.prompt_tokens,
            counter=self.counter,
            memory=self.memory,
        )


# The toy reads each request several times while it answers it.
@lru_cache(maxsize=4)
def _read_object(body: bytes, encoding: str) -> Request | None:
    wbits = {"gzip": 31, "deflate": 15}.get(encoding)
    try:
        parsed = json.loads(body if wbits is None else zlib.decompress(body, wbits))
    except (ValueError, zlib.error, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _render_echo(seen: Seen) -> bytes:
    echo = {"method": seen.method, "path": seen.path, "headers": seen.headers}
    return json.dumps(echo | {"body": base64.b64encode(seen.body).decode()}).encode()
