"""Responses on the wire: unreadable requests pass, and waiting clients get keep-alives of this format."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.toy.agent import Session, Shape, make_session
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.gateway import running_gateway
from tests.toy.reply import Reply
from tests.toy.responses import Responses
from tests.toy.upstream import ToyUpstream
from tests.wire_through.raw import Got, ask, render_answer, render_request, writing
from tests.wire_through.shared_cases import JSON_CASES, requires_cases
from tests.wire_through.test_requests import load_json_cases
from tests.wire_through.wiring import JSON_HEADERS, Wire

PATH = "/v1/responses"
KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'


def render(body: bytes, path: str = PATH) -> bytes:
    return render_request(path, body=body, headers=JSON_HEADERS)


async def passes(wire: Wire, bodies: Iterator[tuple[str, bytes]], path: str = PATH) -> None:
    """Every body reaches the upstream as it is, and its answer comes back."""
    async with wire.connecting() as connection:
        for name, body in bodies:
            got = await connection.ask(render(body, path))
            assert (got.status, got.body) == (200, b"{}"), (name, got)
            assert wire.upstream.received[-1].body == body, name


@requires_cases(JSON_CASES, "JSON cases")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "template",
    [
        b"@",
        b'{"model":"m","input":@}',
        b'{"model":"m","input":[@]}',
        b'{"model":"m","input":[{"role":"user","content":@}],"store":@}',
        b'{"model":"m","input":[{"type":"reasoning","summary":@},{"type":"function_call","call_id":"a","x":@}]}',
        b'{"model":"m","input":[{"type":"function_call_output","call_id":@,"output":@}],"instructions":@}',
        b'{"model":"m","input":"x","previous_response_id":@,"conversation":@}',
        b'{"model":"m","input":[{"type":"item_reference","id":@}]}',
    ],
    ids=lambda template: template.decode().replace('"', ""),
)
async def test_every_json_case_passes_inside_a_body(wire: Wire, template: bytes) -> None:
    await passes(wire, ((name, template.replace(b"@", case)) for name, case in load_json_cases()))


BODIES = {
    "unknown answer": b'{"model":"m","previous_response_id":"resp_x","input":"on"}',
    "conversation": b'{"model":"m","conversation":"conv_1","input":[{"role":"user","content":"on"}]}',
    "unknown items": b'{"model":"m","input":[{"type":"of_tomorrow","x":1.10},{"type":"compaction_trigger"}]}',
    "unknown reference": b'{"model":"m","input":[{"type":"item_reference","id":"rs_x"}]}',
    "prompt template": b'{"prompt":{"id":"pmpt_1"},"input":"on"}',
    "no input": b'{"model":"m"}',
    "repeated keys": b'{"model":"m","input":"x","input":"y"}',
}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", BODIES)
async def test_requests_that_need_not_or_cannot_be_read_pass(wire: Wire, name: str) -> None:
    await passes(wire, iter([(name, BODIES[name])]))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "path", ["/v1/responses/compact", "/v1/responses/input_tokens", "/v1/responses/resp_1/cancel"]
)
async def test_paths_below_the_endpoint_are_only_relayed(wire: Wire, path: str) -> None:
    await passes(
        wire, iter([(path, b'{"input":[{"role":"user","content":"x"}],"previous_response_id":"a"}')]), path
    )
    assert wire.upstream.received[-1].head.line == f"POST {path} HTTP/1.1".encode()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_stored_response_is_fetched_and_deleted_as_ever(wire: Wire, method: str) -> None:
    wire.upstream.script = writing(render_answer(b'{"id":"resp_1"}'))
    got = await wire.ask(render_request("/v1/responses/resp_1?x=1", method=method))
    assert (got.status, got.body) == (200, b'{"id":"resp_1"}')
    assert wire.upstream.received[-1].head.line == f"{method} /v1/responses/resp_1?x=1 HTTP/1.1".encode()


# About 10,000 tokens, of which 8,000 fit: the request needs a summary.
WINDOW = 8_000
TURN = 10


@dataclass(frozen=True)
class Room:
    toy: ToyUpstream
    port: int
    session: Session

    async def ask(self, *, stream: bool) -> Got:
        shape = Shape(dialect=Responses(), stream=stream, max_tokens=1_000)
        return await ask(self.port, render(self.session.request(TURN, shape)))


@asynccontextmanager
async def opening_room() -> AsyncIterator[Room]:
    async with ToyUpstream(window=WINDOW) as toy:
        toy.summary_delivery = Delivery(before_headers_seconds=1.0)
        toy.reply = lambda _: Reply(text="This is the answer.")
        yaml = (
            f'store: "memory:"\nupstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
            f'models:\n  - {{match: "toy-*", context: {WINDOW}}}\n'
            f"keepalive: {{after_seconds: 0.15, every_seconds: 0.15}}\n"
        )
        async with running_gateway(yaml) as gateway:
            yield Room(toy, gateway.port, make_session(TURN + 1, 7))


async def test_a_stream_waits_with_events_that_codex_counts() -> None:
    async with opening_room() as room:
        got = await room.ask(stream=True)
    count = got.body.count(KEEPALIVE)
    assert count >= 2
    assert got.body.startswith(KEEPALIVE * count + b"event: response.created\n")
    assert got.is_whole and b"response.completed" in got.body
    assert [seen.refusal for seen in room.toy.requests] == [None] * len(room.toy.requests)


async def test_a_whole_answer_waits_with_spaces() -> None:
    async with opening_room() as room:
        got = await room.ask(stream=False)
    assert got.body.startswith(b"  ")
    assert json.loads(got.body)["status"] == "completed"


async def test_a_refusal_behind_a_keep_alive_is_a_response_that_failed() -> None:
    async with opening_room() as room:
        error = {"message": "Overloaded", "type": "overloaded", "code": "server_error", "param": None}
        room.toy.failures.append(RawAnswer(status=503, pieces=(json.dumps({"error": error}).encode(),)))
        got = await room.ask(stream=True)
    told = json.loads(got.body.rpartition(b"data: ")[2])
    assert told["type"] == "response.failed"
    assert told["response"]["error"] == {"code": "server_error", "message": "Overloaded"}
    assert told["error"] == error
    assert not got.is_whole
