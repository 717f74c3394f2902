"""Threads whose beginning the gateway did not relay."""

import json
from typing import Any

import pytest

from gateway.core.sizing.usage import Usage
from gateway.wire.formats.messages import MESSAGES
from tests.builders.downstream import open_line, settle
from tests.builders.pipeline import SETTINGS, Pipeline, Reply, make_refusal, render_post, running_pipeline

_MANUAL = SETTINGS.replace("estimator", "compaction: {auto: false}, estimator")


def continued(name: str = "msg_1", text: str = "on", **fields: Any) -> bytes:
    thread = {"type": "continue", "previous_message_id": name}
    messages = [{"role": "user", "content": text}]
    return json.dumps(
        {"model": "toy", "max_tokens": 9, "messages": messages, "thread": thread} | fields
    ).encode()


def reply(name: str, tokens: int) -> Reply:
    body = json.dumps({"type": "message", "id": name, "content": []}).encode()
    return Reply(body=body, usage=Usage(tokens, 10))


async def ask(pipeline: Pipeline, body: bytes, path: str = "/v1/messages") -> bytes:
    """What the client gets."""
    async with open_line(pipeline.proxy.respond) as line:
        await line.send(render_post(body, path))
        await settle()
        return line.written


def read_code(written: bytes) -> tuple[bytes, str]:
    head, _, body = written.partition(b"\r\n\r\n")
    return head.split(b" ")[1], json.loads(body)["error"]["details"]["error_code"]


async def test_it_passes_as_it_came_until_its_usage_says_that_it_is_full() -> None:
    async with running_pipeline() as pipeline:
        pipeline.relay.script = [reply("msg_2", 500), reply("msg_3", 3_990)]
        for name in ("msg_1", "msg_2"):
            written = await ask(pipeline, continued(name, "x" * 600))
            assert written.startswith(b"HTTP/1.1 200")
        assert pipeline.sent == [continued(name, "x" * 600) for name in ("msg_1", "msg_2")]
        written = await ask(pipeline, continued("msg_3"))
        assert read_code(written) == (b"404", "thread_not_found")
        assert len(pipeline.sent) == 2


async def test_what_a_request_adds_counts_too() -> None:
    async with running_pipeline() as pipeline:
        pipeline.relay.script = [reply("msg_2", 1_000)]
        await ask(pipeline, continued())
        assert (await ask(pipeline, continued("msg_2"))).startswith(b"HTTP/1.1 200")
        written = await ask(pipeline, continued("msg_2", "x" * 30_000))
        assert read_code(written) == (b"404", "thread_not_found")


async def test_an_overflow_becomes_the_error_of_a_lost_thread() -> None:
    async with running_pipeline() as pipeline:
        pipeline.relay.script = [make_refusal()]
        assert read_code(await ask(pipeline, continued())) == (b"404", "thread_not_found")
        assert pipeline.sent == [continued()]


async def test_without_compaction_everything_passes() -> None:
    async with running_pipeline(_MANUAL) as pipeline:
        pipeline.relay.script = [reply("msg_2", 3_990)]
        for name in ("msg_1", "msg_2"):
            assert (await ask(pipeline, continued(name))).startswith(b"HTTP/1.1 200")
        assert {exchange.probe for exchange in pipeline.relay.exchanges} == {"none"}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"model":"toy","messages":[],"thread":{"type":"fork","of":"msg_1"}}', "/v1/messages"),
        (b'{"model":"toy","input":"x","previous_response_id":"resp_1"}', "/v1/responses"),
        (b'{"model":"toy","input":"x","conversation":"conv_1"}', "/v1/responses"),
        (continued().replace(b'"on"', b'"on'), "/v1/messages"),
    ],
)
async def test_what_no_client_sends_again_in_full_passes(body: bytes, path: str) -> None:
    """Nothing of it is cut, and what the upstream answers to it is passed on."""
    async with running_pipeline() as pipeline:
        pipeline.relay.script = [Reply(status=400, body=b'{"error":{}}')]
        assert (await ask(pipeline, body, path)).endswith(b'{"error":{}}')
        (exchange,) = pipeline.relay.exchanges
    assert (exchange.call.body, exchange.probe) == (body, "none")


async def test_nothing_is_learned_about_the_sizes_of_messages() -> None:
    """Usage counts what the body does not hold."""
    async with running_pipeline() as pipeline:
        pipeline.relay.script = [reply("msg_2", 3_000)]
        await ask(pipeline, continued())
        turn = await pipeline.build(continued().replace(b"continue", b"create"), "/v1/messages")
        calibration = await pipeline.state.calibrations.load(turn.owner, turn.meter)
    assert turn.received.format is MESSAGES
    assert calibration.wants_sample(3_000)
