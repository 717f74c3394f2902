"""The hostile cases: each attacks a new gateway once, in the sizes in which it did harm.

No case needs a valid key, as the gateway of the bench has no tenants.
"""

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import brotli

from tests.toy.raw import (
    Connection,
    RawUpstream,
    Received,
    Script,
    ask,
    connecting,
    read_head,
    render_answer,
    render_request,
)

Pairs = tuple[tuple[str, str], ...]
_JSON: Final[Pairs] = (("Content-Type", "application/json"),)
_CHAT: Final = "/v1/chat/completions"
_RESPONSES: Final = "/v1/responses"
_MESSAGES: Final = "/v1/messages"
# The window of the model "m" where a case does not say another one.
_WIDE: Final = 2_000_000
MEGABYTE: Final = 1_000_000


@dataclass(frozen=True)
class Stage:
    """The gateway under attack and the upstream behind it."""

    port: int
    upstream: RawUpstream
    admin_port: int = 0

    async def post(self, path: str, body: bytes, headers: Pairs = (), key: str = "sk-nobody") -> str:
        """The status, or how it ended without one."""
        sent = render_request(path, body, (*_JSON, ("Authorization", f"Bearer {key}"), *headers))
        try:
            got = await ask(self.port, sent)
        except ConnectionError:
            return "closed"
        return str(got.status) if got.is_whole else f"{got.status} broken"

    async def post_all(self, path: str, bodies: Iterable[bytes], at_once: int = 1) -> str:
        """Different statuses, in the order of their appearance."""
        free = asyncio.Semaphore(at_once)

        async def post(number: int, body: bytes) -> str:
            async with free:
                return await self.post(path, body, key=f"sk-nobody-{number}")

        found = await asyncio.gather(*(post(number, body) for number, body in enumerate(bodies)))
        return " ".join(dict.fromkeys(found))


Attack = Callable[[Stage], Awaitable[str]]


@dataclass(frozen=True)
class Case:
    """attack: returns a few words about the answers. context: tokens of the window of model "m"."""

    title: str
    attack: Attack
    context: int = _WIDE


def posting(path: str, make_body: Callable[[], bytes], headers: Pairs = ()) -> Attack:
    async def attack(stage: Stage) -> str:
        return await stage.post(path, make_body(), headers)

    return attack


def _join(parts: Iterable[bytes]) -> bytes:
    return b",".join(parts)


def _make_chat(messages: bytes, model: bytes = b"m") -> bytes:
    return b'{"model":"%s","messages":[%s]}' % (model, messages)


def _make_letters(count: int) -> bytes:
    return _make_chat(_join([b'{"role":"user","content":"a"}'] * count))


def _make_reversed_results(count: int) -> bytes:
    """All results in one message, the last one first and each of them late."""
    call = b'{"type":"tool_use","id":"c%d","name":"f","input":{}}'
    result = b'{"type":"tool_result","tool_use_id":"c%d","content":"a"}'
    calls = _join(call % at for at in range(count))
    results = _join(result % at for at in reversed(range(count)))
    turns = (
        b'{"role":"user","content":"Go."},{"role":"assistant","content":[%s]},{"role":"user","content":"So?"},'
        b'{"role":"assistant","content":"Soon."},{"role":"user","content":[%s]}'
    )
    return b'{"model":"m","max_tokens":100,"messages":[%s]}' % (turns % (calls, results))


def _make_calls(count: int) -> bytes:
    call = b'{"id":"c%d","type":"function","function":{"name":"f","arguments":"{}"}}'
    calls = _join(call % at for at in range(count))
    return _make_chat(b'{"role":"user","content":"a"},{"role":"assistant","tool_calls":[%s]}' % calls)


def _make_late_results(count: int) -> bytes:
    """The result of each call comes after all calls, and after a reply."""
    call = (
        b'{"role":"assistant","tool_calls":[{"id":"c%d","type":"function","function":{"name":"f","arguments":'
        b'"{}"}}]},{"role":"user","content":"So?"}'
    )
    result = b'{"role":"tool","tool_call_id":"c%d","content":"a"}'
    calls = _join(call % at for at in range(count))
    results = _join(result % at for at in range(count))
    return _make_chat(b'{"role":"user","content":"a"},' + calls + b"," + results)


def _make_message(text: bytes) -> bytes:
    return _make_chat(b'{"role":"user","content":"%s"}' % text)


def _make_streamed(text: bytes) -> bytes:
    return b'{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}' % text


def _make_fields(count: int) -> bytes:
    fields = _join(b'"f%d":0' % at for at in range(count))
    return b'{"model":"m",%s,"messages":[{"role":"user","content":"a"}]}' % fields


def _make_items(count: int) -> bytes:
    return b'{"model":"m","input":[%s]}' % _join([b'{"type":"a"}'] * count)


def _make_words(size: int, seed: int = 0) -> bytes:
    """Words that no cache knows."""
    return b" ".join(b"word%d" % (seed * 10_000_019 + at) for at in range(size // 12))[:size]


def _make_nested(depth: int) -> bytes:
    return b'{"model":"m","more":%s,"messages":[]}' % (b"[" * depth + b"]" * depth)


def _make_number(digits: int) -> bytes:
    return b'{"model":"m","max_tokens":%s,"messages":[]}' % (b"9" * digits)


def zip_members(count: int, member: bytes = b" ") -> bytes:
    return gzip.compress(b'{"model":"m","messages":[') + gzip.compress(member) * count + gzip.compress(b"]}")


def _answering(*answers: tuple[bytes, Pairs]) -> Script:
    """One after the other, and the last one for all that follow. Nothing received is kept."""
    left = [render_answer(body, headers) for body, headers in answers]

    async def write(_: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()

    return write


async def _attack_nothing(stage: Stage) -> str:
    await asyncio.sleep(2)
    return ""


async def _attack_beside_neighbour(stage: Stage) -> str:
    """Another tenant's request has to be counted, too: it is near its threshold."""
    large = asyncio.create_task(stage.post(_CHAT, _make_message(_make_words(40 * MEGABYTE)), key="sk-large"))
    await asyncio.sleep(0.5)
    started = asyncio.get_running_loop().time()
    status = await stage.post(_CHAT, _make_message(_make_words(300_000, seed=1)), key="sk-neighbour")
    waited = asyncio.get_running_loop().time() - started
    return f"{await large}; neighbour {status} after {waited:.1f} s"


def _attacking_with_answer(make_body: Callable[[], bytes], headers: Pairs, times: int = 1) -> Attack:
    """The upstream is the attacker: its answers are read for usage and for refusals."""

    async def attack(stage: Stage) -> str:
        stage.upstream.script = _answering((make_body(), headers))
        bodies = [_make_streamed(_make_words(200, seed)) for seed in range(times)]
        return await stage.post_all(_CHAT, bodies, at_once=times)

    return attack


async def _attack_with_zipped_bodies(stage: Stage) -> str:
    body = _zip_request()
    bodies = [stage.post(_CHAT, body, (("Content-Encoding", "br"),), f"sk-{at}") for at in range(20)]
    return " ".join(dict.fromkeys(await asyncio.gather(*bodies)))


def _zip_request() -> bytes:
    return bytes(brotli.compress(_make_message(b"a" * 60 * MEGABYTE), quality=9))


def _make_bomb(piece: bytes = b" ") -> bytes:
    """A gigabyte of it."""
    compressor, block = brotli.Compressor(quality=5), piece * (MEGABYTE // len(piece))
    return bytes(b"".join([*(compressor.process(block) for _ in range(1_000)), compressor.finish()]))


async def _attack_with_ids(stage: Stage) -> str:
    """Two messages each, with ids and names of two megabytes that no cache has seen."""
    refusal = b'{"error":{"message":"no such key","type":"invalid_request_error"}}'
    stage.upstream.script = _answering((refusal, _JSON))
    call = (
        b'{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"%s","type":"function",'
        b'"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"%s","content":"a"}'
    )
    ids = (b"%d" % at + b"x" * 2 * MEGABYTE for at in range(141))
    return await stage.post_all(_CHAT, (_make_chat(call % (name, name)) for name in ids))


async def _attack_with_references(stage: Stage) -> str:
    """An item of 200 KB that the upstream stored, named again and again in one request."""
    text = "word " * 40_000
    message = {"type": "message", "id": "m1", "role": "assistant", "status": "completed"}
    message |= {"content": [{"type": "output_text", "text": text, "annotations": []}]}  # type: ignore[dict-item]
    stored = {"id": "resp_1", "object": "response", "status": "completed", "output": [message]}
    empty = stored | {"id": "resp_2", "output": []}
    stage.upstream.script = _answering(
        (json.dumps(stored).encode(), _JSON), (json.dumps(empty).encode(), _JSON)
    )
    first = await stage.post(_RESPONSES, b'{"model":"m","input":"Write.","store":true}')
    reference = b'{"type":"item_reference","id":"m1"}'
    statuses = []
    for size in (59_000, 117_000):
        references = _join([reference] * (size // (len(reference) + 1)))
        statuses.append(await stage.post(_RESPONSES, b'{"model":"m","input":[%s]}' % references))
    return " ".join([first, *statuses])


async def _attack_with_model_names(stage: Stage) -> str:
    names = (b"%d" % at + b"m" * 2 * MEGABYTE for at in range(450))
    return await stage.post_all(_CHAT, (_make_chat(b'{"role":"user","content":"a"}', name) for name in names))


async def _attack_with_heads(stage: Stage) -> str:
    """Heads that never end, of up to 60 MB each."""

    async def send(connection: Connection) -> str:
        try:
            await connection.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n")
            for number in range(1_000):
                await connection.send(b"X-%d: %s\r\n" % (number, b"x" * 60_000))
        except ConnectionError:
            return "closed"
        return "open"

    async def attack() -> str:
        async with connecting(stage.port) as connection:
            return await send(connection)

    return " ".join(dict.fromkeys(await asyncio.gather(*(attack() for _ in range(8)))))


async def _attack_by_hanging_up(stage: Stage) -> str:
    """They send 8 MB, get 8 MB, and hang up without reading it."""
    stage.upstream.script = _answering((b" " * 8 * MEGABYTE, _JSON))
    for seed in range(100):
        body = _make_message(b"%d" % seed + b" word" * (8 * MEGABYTE // 5))
        async with connecting(stage.port) as connection:
            await connection.send(render_request(_CHAT, body, _JSON))
            await read_head(connection.reader)
    return "100 hung up"


async def _attack_by_not_reading(stage: Stage) -> str:
    """100 at once, whose connections stay open."""
    stage.upstream.script = _answering((b" " * 8 * MEGABYTE, _JSON))
    links = [await asyncio.open_connection("127.0.0.1", stage.port, limit=1_000) for _ in range(100)]
    for number, (_, writer) in enumerate(links):
        writer.write(render_request(_CHAT, _make_message(b"%d" % number), _JSON))
    await asyncio.sleep(5)
    for _, writer in links:
        writer.transport.abort()
    return "100 did not read"


async def _attack_with_summaries(stage: Stage) -> str:
    """60 conversations become too long at once; the upstream takes a second for each summary."""
    stage.upstream.script = _summarize_slowly
    turns = _join([b'{"role":"user","content":"%s"},{"role":"assistant","content":"Yes."}'] * 20)
    texts = ((*(_make_words(9_000, seed * 100 + at) for at in range(20)),) for seed in range(60))
    question = b',{"role":"user","content":"So?"}'
    attacking = asyncio.create_task(
        stage.post_all(_CHAT, (_make_chat(turns % text + question) for text in texts), at_once=60)
    )
    slowest = 0.0
    clock = asyncio.get_running_loop().time
    while not attacking.done():
        started = clock()
        await stage.post(_CHAT, _make_message(b"Hello."), key="sk-neighbour")
        slowest = max(slowest, clock() - started)
        await asyncio.sleep(0.02)
    return f"{attacking.result()}; neighbour's slowest {slowest * 1000:.0f} ms"


async def _summarize_slowly(received: Received, writer: asyncio.StreamWriter) -> None:
    summary = b"The task is under way: the parser is done, its tests pass, the printer comes next."
    message = b'{"index":0,"message":{"role":"assistant","content":"%s"},"finish_reason":"stop"}' % summary
    if len(received.body) > 1_000:
        await asyncio.sleep(1)
    if b'"stream":true' in received.body or b'"stream": true' in received.body:
        message = message.replace(b'"message"', b'"delta"')
        body = (
            b'data: {"id":"a","object":"chat.completion.chunk","choices":[%s]}\n\ndata: [DONE]\n\n' % message
        )
        writer.write(render_answer(body, (("Content-Type", "text/event-stream"),)))
    else:
        writer.write(render_answer(b'{"id":"a","object":"chat.completion","choices":[%s]}' % message))
    await writer.drain()


_GZIP: Final[Pairs] = (("Content-Encoding", "gzip"),)
_BROTLI: Final[Pairs] = (("Content-Encoding", "br"),)
_STREAM: Final[Pairs] = (("Content-Type", "text/event-stream"), *_BROTLI)
_SURROGATE: Final = rb"\ud800"

CASES: Final[dict[str, Case]] = {
    "nothing": Case("nothing for two seconds", _attack_nothing),
    "letters-20k": Case(
        "20,000 messages of a letter, window nearly full",
        posting(_CHAT, lambda: _make_letters(20_000)),
        context=128_000,
    ),
    "letters-133k": Case(
        "133,000 messages of a letter, window nearly full",
        posting(_CHAT, lambda: _make_letters(133_000)),
        context=800_000,
    ),
    "results-8k": Case("8,000 results in reverse", posting(_MESSAGES, lambda: _make_reversed_results(8_000))),
    "results-16k": Case(
        "16,000 results in reverse", posting(_MESSAGES, lambda: _make_reversed_results(16_000))
    ),
    "calls": Case(
        "55,000 calls in one message", posting(_CHAT, lambda: _make_calls(55_000)), context=1_200_000
    ),
    "late-results": Case(
        "4,000 late results, window full", posting(_CHAT, lambda: _make_late_results(4_000)), context=100_000
    ),
    "surrogate": Case(
        "a lone surrogate in 20 MB",
        posting(_CHAT, lambda: _make_message(_make_words(20 * MEGABYTE) + _SURROGATE)),
    ),
    "fields": Case("650,000 fields", posting(_CHAT, lambda: _make_fields(650_000))),
    "messages": Case("400,000 messages", posting(_CHAT, lambda: _make_letters(400_000))),
    "items": Case("3,500,000 items of input", posting(_RESPONSES, lambda: _make_items(3_500_000))),
    "depth": Case("20 MB of nested lists", posting(_CHAT, lambda: _make_nested(10 * MEGABYTE))),
    "digits": Case("a number of 20 MB", posting(_CHAT, lambda: _make_number(20 * MEGABYTE))),
    "neighbour": Case("40 MB beside another tenant's count", _attack_beside_neighbour, context=100_000),
    "one-letter": Case(
        "1 MB of one letter", posting(_CHAT, lambda: _make_message(b"a" * MEGABYTE)), context=200_000
    ),
    "blanks": Case("1 MB of blanks", posting(_CHAT, lambda: _make_message(b" " * MEGABYTE)), context=200_000),
    "br-answer": Case("an answer of 1 GB in 1 KB of br", _attacking_with_answer(_make_bomb, _JSON + _BROTLI)),
    "br-stream": Case(
        "a stream of 1 GB of line ends in 1 KB of br",
        _attacking_with_answer(lambda: _make_bomb(b"\n"), _STREAM),
    ),
    "br-events": Case(
        "a stream of 1 GB of empty events in 1 KB of br",
        _attacking_with_answer(lambda: _make_bomb(b"data:\n\n"), _STREAM),
    ),
    "br-answers": Case(
        "20 such answers at once", _attacking_with_answer(_make_bomb, _JSON + _BROTLI, times=20)
    ),
    "br-request": Case("a request of 60 MB in 150 bytes of br", posting(_CHAT, _zip_request, _BROTLI)),
    "br-requests": Case("20 such requests at once", _attack_with_zipped_bodies),
    "members-answer": Case(
        "an answer of 2,000 gzip members", _attacking_with_answer(lambda: zip_members(2_000), _GZIP)
    ),
    "members-request": Case(
        "a request of 2,000 gzip members", posting(_CHAT, lambda: zip_members(2_000), _GZIP)
    ),
    "ids": Case("141 requests with ids of 2 MB", _attack_with_ids),
    "references": Case("an item of 200 KB, named 7,000 times", _attack_with_references),
    "model-names": Case("450 models with names of 2 MB", _attack_with_model_names),
    "heads": Case("8 heads that never end", _attack_with_heads),
    "hang-ups": Case("100 clients that hang up on 8 MB", _attack_by_hanging_up, context=10_000_000),
    "non-readers": Case("100 clients that do not read 8 MB", _attack_by_not_reading),
    "summaries": Case("60 summaries at once", _attack_with_summaries, context=40_000),
}
