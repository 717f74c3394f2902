"""The way of a request, from the client's bytes to the client's bytes."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core.errors import UpstreamFailed, UpstreamStalled
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.usage import Usage
from tests.builders.downstream import open_line, settle
from tests.builders.pipeline import SETTINGS, Pipeline, Reply, make_refusal, render_post, running_pipeline

_QUESTION = [{"role": "user", "content": "Fix the parser."}]
_COMMANDS = SETTINGS.replace("estimator", "commands: true, estimator")


def render(messages: Sequence[dict[str, Any]] = _QUESTION, **fields: Any) -> bytes:
    return json.dumps({"model": "toy", "messages": list(messages)} | fields).encode()


async def ask(pipeline: Pipeline, request: bytes) -> bytes:
    """What the client gets."""
    async with open_line(pipeline.proxy.respond) as line:
        await line.send(request)
        await settle()
        return line.written


async def test_a_request_far_below_the_thresholds_passes_unchanged() -> None:
    body = render()
    async with running_pipeline() as pipeline:
        written = await ask(pipeline, render_post(body))
        assert pipeline.sent == [body]
    assert b"x-gateway-plan: passthrough" in written and written.endswith(b"\r\n\r\n{}")


async def test_what_is_not_understood_is_relayed_as_it_came() -> None:
    async with running_pipeline() as pipeline:
        for body, path in (
            (b"no JSON", "/v1/chat/completions"),
            (b"{}", "/v1/messages"),
            (b"any", "/v1/files"),
        ):
            written = await ask(pipeline, render_post(body, path))
            assert written.endswith(b"\r\n\r\n{}") and b"x-gateway" not in written
        exchanges = pipeline.relay.exchanges
    assert [exchange.call.body for exchange in exchanges[:2]] == [b"no JSON", b"{}"]
    assert {exchange.on_outcome for exchange in exchanges} == {None}


async def test_a_bypassed_request_is_neither_read_nor_recorded() -> None:
    async with running_pipeline() as pipeline:
        await ask(pipeline, render_post(render(), more=["x-gateway-bypass: 1"]))
        (exchange,) = pipeline.relay.exchanges
        assert pipeline.registry.list(None, 10) == []
    assert exchange.on_outcome is None and exchange.headers == {}


async def test_a_response_is_handed_over_once() -> None:
    async with running_pipeline() as pipeline:
        pipeline.relay.script = [Reply(usage=Usage(20, 2))]
        await ask(pipeline, render_post(render()))
        (record,) = pipeline.registry.list(None, 10)
    assert (record.head.prompt_tokens, record.head.output_tokens) == (20, 2)


async def test_a_count_is_forwarded_and_leaves_no_trace() -> None:
    body = render()
    async with running_pipeline() as pipeline:
        await ask(pipeline, render_post(body, "/v1/messages/count_tokens"))
        assert pipeline.sent == [body]
        assert pipeline.registry.list(None, 10) == []


async def test_a_command_is_answered_by_the_gateway() -> None:
    messages = [
        *_QUESTION,
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "/compact"},
    ]
    async with running_pipeline(_COMMANDS) as pipeline:
        written = await ask(pipeline, render_post(render(messages)))
        assert pipeline.sent == []
    answer = json.loads(written.partition(b"\r\n\r\n")[2])
    assert answer["choices"][0]["message"]["content"].startswith("Nothing to compact")


async def test_a_refusal_that_nothing_helps_against_reaches_the_client() -> None:
    async with running_pipeline() as pipeline:
        pipeline.relay.script = [make_refusal(Overflow(), b'{"error":{"message":"too long"}}')]
        written = await ask(pipeline, render_post(render()))
    assert written.startswith(b"HTTP/1.1 400") and written.endswith(b'{"error":{"message":"too long"}}')


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with running_pipeline(SETTINGS + "listen: {max_body_bytes: 100}\n") as pipeline:
        written = await ask(pipeline, render_post(render([{"role": "user", "content": "x" * 100}])))
        assert pipeline.relay.exchanges == []
    assert written.startswith(b"HTTP/1.1 413") and b"request_too_large" in written


@pytest.mark.parametrize(
    ("error", "status"),
    [(UpstreamFailed("default: ClientError"), 502), (UpstreamStalled("default: silent"), 504)],
)
async def test_an_upstream_that_does_not_respond_is_an_error_of_the_client_s_format(
    error: UpstreamFailed, status: int
) -> None:
    for path, kind in (("/v1/chat/completions", "error"), ("/v1/messages", "type")):
        async with running_pipeline() as pipeline:
            pipeline.relay.script = [error]
            written = await ask(pipeline, render_post(render(), path))
        assert written.startswith(b"HTTP/1.1 %d" % status)
        assert kind in json.loads(written.partition(b"\r\n\r\n")[2])


async def test_an_error_inside_the_gateway_is_a_response_too(caplog: pytest.LogCaptureFixture) -> None:
    async with running_pipeline() as pipeline:
        pipeline.relay.script = [ZeroDivisionError("ours")]
        written = await ask(pipeline, render_post(render()))
    assert written.startswith(b"HTTP/1.1 500") and b"ours" not in written
    assert "request failed inside the gateway" in caplog.text


@pytest.mark.parametrize("shows_headers", [True, False])
async def test_a_body_beyond_a_bound_passes_unread_with_a_warning(
    caplog: pytest.LogCaptureFixture, *, shows_headers: bool
) -> None:
    bounds = f"bounds: {{messages: 2}}\nresponse_headers: {str(shows_headers).lower()}\n"
    body = render([{"role": "user", "content": "secret"}] * 3)
    async with running_pipeline(SETTINGS + bounds) as pipeline:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"):
            written = await ask(pipeline, render_post(body, path))
            warning = b"x-gateway-warning: not read: more than 2 messages"
            assert (warning in written) == shows_headers
            assert (b"x-gateway-" in written) == shows_headers
        assert pipeline.sent == [body] * 3
        assert pipeline.registry.list(None, 10) == []
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.proxy"]
    assert lines == ["a request passes unread: more than 2 messages"] * 3


_LIMITED = SETTINGS + "tenants: [{name: a, keys: [sk-toy], requests_per_minute: 1, concurrent_requests: 1}]\n"


async def test_a_tenant_beyond_its_limit_gets_429_before_its_body_is_read() -> None:
    async with running_pipeline(_LIMITED) as pipeline:
        # A minute that begins in between has room for one more.
        for _ in range(3):
            await ask(pipeline, render_post(render()))
        sent = len(pipeline.relay.exchanges)
        head = render_post(render()).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        written = await ask(pipeline, head)
        assert sent == len(pipeline.relay.exchanges) <= 2
    assert written.startswith(b"HTTP/1.1 429 Too Many Requests\r\n") and b"Retry-After: " in written
    assert json.loads(written.partition(b"\r\n\r\n")[2])["error"]["code"] == "rate_limit_exceeded"


async def test_every_request_that_would_go_upstream_counts() -> None:
    wide = _LIMITED.replace("requests_per_minute: 1", "requests_per_minute: 4")
    refused = b"HTTP/1.1 429 "
    async with running_pipeline(wide) as pipeline:
        for request in (
            render_post(render()),
            render_post(render(), "/v1/messages/count_tokens"),
            render_post(render(), "/v1/embeddings"),
            render_post(render(), more=["x-gateway-bypass: 1"]),
        ):
            assert (await ask(pipeline, request)).startswith(b"HTTP/1.1 200 ")
        more = [await ask(pipeline, render_post(render(), "/v1/files")) for _ in range(2)]
        assert more[-1].startswith(refused) or more[0].startswith(refused)
        assert 4 <= len(pipeline.relay.exchanges) <= 5


async def test_a_place_is_free_again_after_any_end_of_a_request() -> None:
    wide = _LIMITED.replace("requests_per_minute: 1, ", "")
    async with running_pipeline(wide) as pipeline:
        pipeline.relay.script = [UpstreamFailed("default: ClientError"), ConnectionError("gone"), Reply()]
        for status in (b"502", b"", b"200"):
            assert status in (await ask(pipeline, render_post(render())))[:12]
