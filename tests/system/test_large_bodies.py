"""No body keeps others waiting: what is large is read in a thread, what is too much passes unread. And what
clients choose takes no more memory than the settings say, however much of it they send.

The sizes are those that took from seconds to half an hour of the event loop. A test that fails here may
simply not end.
"""

import gc
import json
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from types import FrameType
from typing import Any

import pytest
import pytest_asyncio

from tests.toy.raw import render_answer, render_request, writing
from tests.toy.wire import JSON_HEADERS, Wire, opening_wire

pytestmark = pytest.mark.asyncio(loop_scope="module")
_CHAT = "/v1/chat/completions"
_RESPONSES = "/v1/responses"
_MESSAGES = "/v1/messages"
_COUNT = "/v1/messages/count_tokens"
_LETTER = b'{"role":"user","content":"x"}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_wire() -> AsyncIterator[Wire]:
    """The window of every model is known, and nearly full with what the tests send."""
    async with opening_wire(more='models: [{match: "*", context: 128000}]\n') as opened:
        yield opened


@pytest.fixture
def wire(module_wire: Wire) -> Wire:
    module_wire.reset()
    return module_wire


def join(parts: Iterable[bytes]) -> bytes:
    return b",".join(parts)


def make_chat(*messages: bytes) -> bytes:
    return b'{"model":"m","max_tokens":9,"messages":[' + join(messages) + b"]}"


def make_input(*items: bytes) -> bytes:
    return b'{"model":"m","input":[' + join(items) + b"]}"


def make_fields(count: int) -> bytes:
    fields = join(b'"f%d":0' % number for number in range(count))
    return b'{"model":"m",' + fields + b',"messages":[' + _LETTER + b"]}"


def make_calls(count: int) -> bytes:
    """Calls in one message of a chat."""
    call = b'{"id":"c%d","type":"function","function":{"name":"f","arguments":"{}"}}'
    calls = join(call % number for number in range(count))
    return make_chat(_LETTER, b'{"role":"assistant","tool_calls":[' + calls + b"]}", _LETTER)


def make_reversed_results(count: int) -> bytes:
    """Calls in one message, another reply, and all results in one message, the last one first."""
    call = b'{"type":"tool_use","id":"c%d","name":"f","input":{}}'
    result = b'{"type":"tool_result","tool_use_id":"c%d","content":"x"}'
    calls = join(call % number for number in range(count))
    results = join(result % number for number in reversed(range(count)))
    asked = b'{"role":"assistant","content":[' + calls + b"]}"
    said = b'{"role":"assistant","content":"So."}'
    return make_chat(_LETTER, asked, _LETTER, said, b'{"role":"user","content":[' + results + b"]}")


def make_late_results(count: int) -> bytes:
    """The result of each call comes after all calls."""
    call = b'{"type":"function_call","call_id":"c%d","name":"f","arguments":"{}"}'
    said = b'{"role":"user","content":"So?"}'
    result = b'{"type":"function_call_output","call_id":"c%d","output":"x"}'
    asked = (join((call % number, said)) for number in range(count))
    return make_input(said, *asked, *(result % number for number in range(count)))


def make_text(text: bytes) -> bytes:
    return make_chat(b'{"role":"user","content":"' + text + b'"}')


READ: dict[str, tuple[str, Callable[[], bytes]]] = {
    "20,000 letters": (_CHAT, lambda: make_chat(*[_LETTER] * 20_000)),
    "20,000 letters to count": (_COUNT, lambda: make_chat(*[_LETTER] * 20_000)),
    "20,000 items": (_RESPONSES, lambda: make_input(*[_LETTER] * 20_000)),
    "20,000 results without a call": (
        _MESSAGES,
        lambda: make_chat(
            *[b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x"}]}'] * 20_000
        ),
    ),
    "20,000 thoughts": (
        _RESPONSES,
        lambda: make_input(*[b'{"type":"reasoning","id":"r","summary":[]}'] * 20_000),
    ),
    "reversed results": (_MESSAGES, lambda: make_reversed_results(16_000)),
    "late results": (_RESPONSES, lambda: make_late_results(4_000)),
    "calls in one message": (_CHAT, lambda: make_calls(50_000)),
    "parts in one message": (
        _CHAT,
        lambda: make_chat(b'{"role":"user","content":[' + join([b"{}"] * 100_000) + b"]}"),
    ),
    "half of a surrogate pair": (_CHAT, lambda: make_text(b"x" * 20_000_000 + rb"\ud800")),
    "backslashes": (_CHAT, lambda: make_text(b"\\\\" * 5_000_000 + rb"\ud800")),
    "spaces": (_CHAT, lambda: b" " * 5_000_000 + make_chat(b" " * 5_000_000 + _LETTER + b" " * 5_000_000)),
    "a key of backslashes": (_CHAT, lambda: b'{"' + b"\\\\" * 5_000_000 + b'":0,' + make_text(b"x")[1:]),
    "opened reminders": (_CHAT, lambda: make_text(b"<system-reminder>" * 500_000)),
    "reminders": (_CHAT, lambda: make_text(b"<system-reminder>x</system-reminder>" * 300_000)),
    "brackets in a text": (_CHAT, lambda: make_text(b"[{,:" * 3_000_000)),
    "one long argument": (
        _CHAT,
        lambda: make_chat(
            json.dumps(
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "a", "function": {"name": "f", "arguments": "[" + "1," * 900_000 + "1]"}}
                    ],
                }
            ).encode()
        ),
    ),
}


@pytest.mark.parametrize("kind", READ)
async def test_what_is_large_is_read_in_good_time(wire: Wire, kind: str) -> None:
    path, make_body = READ[kind]
    body = make_body()
    got = await wire.ask(render_request(path, body, JSON_HEADERS))
    assert got.status == 200
    assert not (got.own("warning") or "").startswith("not read")
    # Some are compacted on their way.
    assert wire.upstream.received[-1].body[:12] == body[:12]


UNREAD: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "133,000 letters": (_CHAT, lambda: make_chat(*[_LETTER] * 133_000), "250000 values"),
    "20,001 letters": (_CHAT, lambda: make_chat(*[_LETTER] * 20_001), "20000 messages"),
    "400,000 letters": (_MESSAGES, lambda: make_chat(*[_LETTER] * 400_000), "250000 values"),
    "400,000 letters to count": (_COUNT, lambda: make_chat(*[_LETTER] * 400_000), "250000 values"),
    "3.5 million numbers": (_RESPONSES, lambda: make_input(*[b"1"] * 3_500_000), "250000 values"),
    "3.5 million texts": (_RESPONSES, lambda: make_input(*[b'""'] * 3_500_000), "250000 values"),
    "650,000 fields": (_CHAT, lambda: make_fields(650_000), "250000 values"),
    "1,001 fields": (_CHAT, lambda: make_fields(1_001), "1000 fields"),
    "a million parts": (
        _CHAT,
        lambda: make_chat(b'{"role":"user","content":[' + join([b"{}"] * 1_000_000) + b"]}"),
        "250000 values",
    ),
    "a million keys in a message": (
        _MESSAGES,
        lambda: make_chat(b'{"role":"user",' + join(b'"f%d":0' % at for at in range(1_000_000)) + b"}"),
        "250000 values",
    ),
    "a million blocks of a system prompt": (
        _MESSAGES,
        lambda: b'{"system":[' + join([b'{"type":"text"}'] * 1_000_000) + b"]," + make_text(b"x")[1:],
        "250000 values",
    ),
    "deep nesting": (
        _CHAT,
        lambda: make_chat(b'{"role":"user","content":' + b"[" * 900 + b"]" * 900 + b"}"),
        "nested more than 200 deep",
    ),
    "millions of halves": (_CHAT, lambda: make_text(rb"\ud800x" * 2_000_000), "10000 halves"),
    "a million values in an argument": (
        _CHAT,
        lambda: make_chat(
            json.dumps(
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"id": "a", "function": {"name": "f", "arguments": "[" + "{}," * 5_000_000 + "1]"}}
                    ],
                }
            ).encode()
        ),
        "1000000 values",
    ),
}


@pytest.mark.parametrize("kind", UNREAD)
async def test_what_is_too_much_passes_unread_byte_for_byte(wire: Wire, kind: str) -> None:
    path, make_body, bound = UNREAD[kind]
    body = make_body()
    got = await wire.ask(render_request(path, body, JSON_HEADERS))
    assert got.status == 200
    assert (got.own("warning") or "").startswith("not read: ")
    assert bound in (got.own("warning") or "")
    assert wire.upstream.received[-1].body == body


@pytest.mark.parametrize(
    "raw", [b"[" * 10_000_000, b'{"a":' * 3_000_000, b'"' * 10_000_000, b"9" * 20_000_000]
)
async def test_what_is_no_request_passes_in_good_time(wire: Wire, raw: bytes) -> None:
    for body in (raw, make_chat(raw), b'{"model":"m","max_tokens":' + raw + b',"messages":[]}'):
        got = await wire.ask(render_request(_CHAT, body, JSON_HEADERS))
        assert got.status == 200
        assert wire.upstream.received[-1].body == body


async def _count_loop_lines(wire: Wire, path: str, bodies: Iterable[bytes]) -> list[int]:
    """Lines of Python that the event loop's thread executes for each body, those of the test included."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    assert threading.current_thread() is threading.main_thread()
    counted = []
    for body in bodies:
        request, lines = render_request(path, body, JSON_HEADERS), 0
        sys.settrace(trace)
        try:
            got = await wire.ask(request)
        finally:
            sys.settrace(None)
        assert got.status == 200
        counted.append(lines)
    return counted


@pytest.mark.parametrize("path", [_CHAT, _RESPONSES])
async def test_reading_a_large_body_is_not_the_work_of_the_event_loop(path: str) -> None:
    """To read a message takes dozens of lines. Those on the event loop only look for what is known of it."""

    def make(count: int) -> bytes:
        texts = [b'{"role":"user","content":"%d of %d"}' % (number, count) for number in range(count)]
        return make_input(*texts) if path == _RESPONSES else make_chat(*texts)

    async with opening_wire(more='models: [{match: "*", context: 2000000}]\n') as wire:
        few, many = await _count_loop_lines(wire, path, [make(5_000), make(10_000)])
    assert many - few < 25 * 5_000


_SMALL = """
bounds: {bodies_bytes: 16777216}
cache: {bodies_bytes: 4194304, facts_bytes: 1048576, records_bytes: 1048576, named_bytes: 3145728,
  activity_bytes: 1048576}
models: [{match: "*", context: 128000}]
"""
# All of the above, and what Python's own tables take while they grow.
_MOST_GROWN_BYTES = 16 << 20


def make_call(name: str) -> bytes:
    call = {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
    answer = {"role": "tool", "tool_call_id": name, "content": "x"}
    asked = {"role": "assistant", "tool_calls": [call]}
    return make_chat(_LETTER, *(json.dumps(each).encode() for each in (asked, answer)))


# By what a client chooses in a request of 100 KB: its path, its body, and a header.
CHOSEN: dict[str, tuple[str, Callable[[str], bytes], str]] = {
    "ids of calls": (_CHAT, make_call, ""),
    "keys": (_CHAT, lambda name: make_text(b"x"), "Authorization"),
    "responses": (_RESPONSES, lambda name: make_input(_LETTER), ""),
}


@pytest.mark.parametrize("kind", CHOSEN)
async def test_what_clients_choose_takes_bounded_memory(kind: str) -> None:
    path, make_body, header = CHOSEN[kind]
    async with opening_wire(more=_SMALL) as wire:

        async def send(count: int) -> None:
            for number in range(count):
                name = f"{number:08}-" + "n" * (60_000 if header else 100_000)
                reply = {"id": f"resp_{name}", "object": "response", "status": "completed", "output": []}
                wire.upstream.script = writing(render_answer(json.dumps(reply).encode()))
                more = ((header, f"Bearer {name}"),) if header else JSON_HEADERS[1:]
                got = await wire.ask(render_request(path, make_body(name), (*JSON_HEADERS[:1], *more)))
                assert got.status == 200
                wire.upstream.received.clear()
            await wire.product.at_rest()
            gc.collect()

        await send(2)
        tracemalloc.start()
        try:
            await send(300 if header else 120)
            grown = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert grown < _MOST_GROWN_BYTES, f"{grown / (1 << 20):.1f} MiB"


@pytest.mark.usefixtures("traced")
async def test_bodies_that_were_announced_and_do_not_come_take_no_memory(wire: Wire) -> None:
    announced = render_request(headers=JSON_HEADERS).replace(
        b"Content-Length: 0", b"Content-Length: 60000000"
    )
    async with AsyncExitStack() as exits:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            client = await exits.enter_async_context(wire.connecting())
            await client.send(announced + b"x" * 1_000)
        assert (await wire.chat(make_text(b"x"))).status == 200
        assert tracemalloc.get_traced_memory()[1] - before < 4 << 20


@pytest.mark.usefixtures("traced")
async def test_references_that_stand_for_more_than_a_body_may_hold_are_not_written_out(wire: Wire) -> None:
    """60 KB of references to an item of 200 KB would be 300 MB."""
    item = {"type": "message", "id": "i", "role": "assistant", "content": "x" * 200_000}
    reply = {"object": "response", "id": "r", "status": "completed", "output": [item]}
    wire.upstream.script = writing(render_answer(json.dumps(reply).encode()))
    assert (await wire.ask(render_request(_RESPONSES, make_input(_LETTER), JSON_HEADERS))).status == 200
    await wire.product.at_rest()
    body = make_input(*[b'{"type":"item_reference","id":"i"}'] * 1_500)
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    assert (await wire.ask(render_request(_RESPONSES, body, JSON_HEADERS))).status == 200
    assert wire.upstream.received[-1].body == body
    assert tracemalloc.get_traced_memory()[1] - before < 16 << 20
