"""Traces of a running gateway, as a collector gets them over a socket."""

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.toy.agent import Shape, make_session
from tests.toy.delivery import RawAnswer
from tests.toy.house import make_settings
from tests.toy.product import Product, run_command, serve
from tests.toy.reply import Reply
from tests.toy.running import run_session, wait_until
from tests.toy.upstream import Seen, ToyUpstream

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra [otel] is not installed")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.status = 200
        self.location: str | None = None
        self.port = 0

    @property
    def spans(self) -> list[Span]:
        return [span for body in self.bodies for span in _list_spans(body)]

    def find(self, beginning: str) -> list[Span]:
        """By the beginning of their names."""
        return [span for span in self.spans if span.name.startswith(beginning)]

    async def wait_for(self, beginning: str, count: int = 1) -> list[Span]:
        await wait_until(lambda: len(self.find(beginning)) >= count, 30)
        return self.find(beginning)

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.paths.append(request.path)
        self.keys.append(request.headers.get("x-key", ""))
        headers = {"Location": self.location} if self.location is not None else {}
        return web.Response(status=self.status, content_type="application/x-protobuf", headers=headers)


def _list_spans(body: bytes) -> Iterator[Span]:
    message = ExportTraceServiceRequest.FromString(body)
    for resource in message.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def read_attributes(span: Span) -> dict[str, Any]:
    return {pair.key: _read_value(pair.value) for pair in span.attributes}


def _read_value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_read_value(each) for each in value.array_value.values)
    return getattr(value, kind) if kind is not None else None


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    application = web.Application()
    application.router.add_route("POST", "/{path:.*}", collector.take)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.port = runner.addresses[0][1]
    try:
        yield collector
    finally:
        await runner.cleanup()


_TRACE = "0af7651916cd43dd8448eb211c80319c"
_PARENT = "b7ad6b7169203331"
_CLIENT = {"traceparent": f"00-{_TRACE}-{_PARENT}-01", "tracestate": "vendor=1"}
_SECRET = "hunter2"


def name_collector(collector: Collector, more: str = "") -> str:
    return f"traces: {{endpoint: 'http://127.0.0.1:{collector.port}', headers: {{x-key: abc}}{more}}}\n"


async def post(gateway: Product, headers: Mapping[str, str], path: str = "/chat/completions") -> int:
    body = {"model": "toy-model", "messages": [{"role": "user", "content": _SECRET}], "max_tokens": 9}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{gateway.base_url}{path}", json=body, headers=headers) as response,
    ):
        await response.read()
        return response.status


def read_trace(seen: Seen) -> dict[str, str]:
    names = ("traceparent", "tracestate")
    return {name.lower(): value for name, value in seen.headers if name.lower() in names}


async def test_a_request_and_its_upstream_call_have_a_span_each_in_the_trace_of_the_client() -> None:
    async with ToyUpstream(window=16_000) as toy, collecting() as collector:
        toy.reply = lambda _: Reply(text="Hello.")
        async with serve(make_settings(toy, more=name_collector(collector))) as gateway:
            await post(gateway, _CLIENT)
        (call,), (request,) = collector.find("POST"), collector.find("chat toy-model")
    assert set(collector.paths) == {"/v1/traces"} and set(collector.keys) == {"abc"}
    assert request.trace_id.hex() == call.trace_id.hex() == _TRACE
    assert request.parent_span_id.hex() == _PARENT and call.parent_span_id == request.span_id
    assert read_trace(toy.requests[-1]) == {
        "traceparent": f"00-{_TRACE}-{call.span_id.hex()}-01",
        "tracestate": "vendor=1",
    }
    said = read_attributes(request)
    assert said["gen_ai.operation.name"] == "chat" and said["gen_ai.provider.name"] == "default"
    assert said["gen_ai.request.model"] == said["gen_ai.response.model"] == "toy-model"
    assert said["gen_ai.usage.input_tokens"] > 0 and said["gen_ai.usage.output_tokens"] > 0
    assert said["gen_ai.request.max_tokens"] == 9
    assert said["gen_ai.response.finish_reasons"] == ("stop",)
    assert said["gateway.plan"] == "passthrough" and len(said["gen_ai.conversation.id"]) > 8
    assert "gen_ai.conversation.compacted" not in said
    assert read_attributes(call)["http.response.status_code"] == 200
    assert not any(_SECRET.encode() in body for body in collector.bodies)


async def test_a_compaction_and_its_summary_call_have_spans() -> None:
    async with ToyUpstream(window=16_000) as toy, collecting() as collector:
        async with serve(make_settings(toy, more=name_collector(collector))) as gateway:
            await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
            await gateway.at_rest()
        (compaction, *_) = collector.find("compact")
        requests = [span for span in collector.find("chat") if "gateway.plan" in read_attributes(span)]
        calls = [span for span in collector.find("chat") if span not in requests]
    said = read_attributes(compaction)
    assert said["gen_ai.conversation.compacted"] is True and said["gateway.compaction.result"] == "done"
    assert said["gateway.compaction.tokens_after"] < said["gateway.compaction.tokens_before"]
    assert calls and read_attributes(calls[0])["gen_ai.usage.input_tokens"] > 0
    # Both belong to the trace of the request that made them necessary.
    assert {compaction.trace_id, calls[0].trace_id} <= {span.trace_id for span in requests}
    (seen, *_) = [seen for seen in toy.requests if seen.is_summary]
    assert read_trace(seen)["traceparent"].split("-")[2] == calls[0].span_id.hex()
    compacted = [read_attributes(span).get("gen_ai.conversation.compacted") for span in requests]
    assert True in compacted and False not in compacted


async def test_with_traces_off_the_headers_pass_as_they_came() -> None:
    async with ToyUpstream(window=16_000) as toy:
        toy.reply = lambda _: Reply(text="Hello.")
        async with serve(make_settings(toy)) as gateway:
            for sent in (_CLIENT, {"traceparent": "not valid", "tracestate": "a=1,b=2"}, {}):
                await post(gateway, sent)
                assert read_trace(toy.requests[-1]) == sent


async def test_a_trace_that_cannot_be_read_is_begun_anew() -> None:
    async with ToyUpstream(window=16_000) as toy, collecting() as collector:
        toy.reply = lambda _: Reply(text="Hello.")
        async with serve(make_settings(toy, more=name_collector(collector))) as gateway:
            await post(gateway, {"traceparent": "not valid", "tracestate": "vendor=1"})
        (request,) = collector.find("chat")
    assert not request.parent_span_id
    carried = read_trace(toy.requests[-1])
    assert carried["traceparent"].split("-")[1] == request.trace_id.hex() and "tracestate" not in carried


async def test_what_is_not_followed_and_what_fails_has_a_span_too() -> None:
    async with ToyUpstream(window=16_000) as toy, collecting() as collector:
        toy.reply = lambda _: Reply(text="no")
        async with serve(make_settings(toy, more=name_collector(collector))) as gateway:
            await post(gateway, _CLIENT, f"/files?key={_SECRET}")
        (request,) = collector.find("relay")
    said = read_attributes(request)
    assert said["gateway.plan"] == "relayed" and "gen_ai.operation.name" not in said
    assert not any(_SECRET.encode() in body for body in collector.bodies)


async def test_of_a_trace_that_the_client_does_not_record_nothing_is_sent() -> None:
    unsampled = {"traceparent": f"00-{_TRACE}-{_PARENT}-00"}
    async with ToyUpstream(window=16_000) as toy, collecting() as collector:
        toy.reply = lambda _: Reply(text="Hello.")
        async with serve(make_settings(toy, more=name_collector(collector))) as gateway:
            await post(gateway, unsampled)
    assert collector.spans == []
    carried = read_trace(toy.requests[-1])["traceparent"].split("-")
    assert (carried[1], carried[3]) == (_TRACE, "00")


async def test_a_collector_that_is_away_costs_one_line_and_no_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with ToyUpstream(window=16_000) as toy, collecting() as collector:
        toy.reply = lambda _: Reply(text="Hello.")
        collector.status = 400
        caplog.set_level(logging.INFO)
        async with serve(make_settings(toy, more=name_collector(collector))) as gateway:
            assert await post(gateway, {}) == 200
            await wait_until(lambda: len(collector.bodies) == 1, 30)
            assert await post(gateway, {}) == 200
            await wait_until(lambda: len(collector.bodies) == 2, 30)
            collector.status = 200
            assert await post(gateway, {}) == 200
            await wait_until(lambda: "takes them again" in caplog.text, 30)
        named = [
            record for record in caplog.records if record.name.startswith(("gateway.traces", "opentelemetry"))
        ]
    assert [record.levelname for record in named] == ["WARNING", "INFO"]


async def test_a_redirect_of_the_collector_is_not_followed() -> None:
    """Neither the spans nor the collector's key go to another host."""
    async with ToyUpstream() as toy, collecting() as collector, collecting() as other:
        collector.status, collector.location = 307, f"http://127.0.0.1:{other.port}/v1/traces"
        async with serve(make_settings(toy, more=name_collector(collector))) as gateway:
            await post(gateway, {})
            await collector.wait_for("chat")
    # At its end the gateway has waited for what was being sent.
    assert other.bodies == [] and set(collector.keys) == {"abc"}


async def test_a_share_of_nothing_sends_nothing_and_an_error_is_named_without_its_text() -> None:
    async with ToyUpstream(window=16_000) as toy, collecting() as collector:
        toy.failures = [RawAnswer(status=500, pieces=(_SECRET.encode(),))]
        async with serve(make_settings(toy, more=name_collector(collector))) as gateway:
            assert await post(gateway, {}) == 500
        (request,) = collector.find("chat")
        assert read_attributes(request)["error.type"] == "500"
        assert not any(_SECRET.encode() in body for body in collector.bodies)
        collector.bodies.clear()
        async with serve(make_settings(toy, more=name_collector(collector, ", sample: 0"))) as gateway:
            assert await post(gateway, {}) == 200
    flags = read_trace(toy.requests[-1])["traceparent"].split("-")[3]
    assert collector.spans == [] and not int(flags, 16) & 1


_BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def test_settings_that_need_the_libraries_say_how_to_get_them(tmp_path: Path) -> None:
    """They are an extra, and nothing needs them while traces are off."""
    (tmp_path / "sitecustomize.py").write_text(_BLOCK)
    paths = f"{tmp_path}:{Path(__file__).resolve().parents[2]}"
    file = tmp_path / "gateway.yaml"
    file.write_text("drain_seconds: 8\ntraces: {endpoint: 'http://127.0.0.1:4318'}\n")
    ended = run_command("check", str(file), cwd=tmp_path, PYTHONPATH=paths)
    assert ended.status == 2
    assert f"{file}:2: traces.endpoint: needs the libraries of OpenTelemetry" in ended.err
    assert "pip install 'refold[otel]'" in ended.err
    file.write_text("drain_seconds: 8\n")
    assert run_command("check", str(file), cwd=tmp_path, PYTHONPATH=paths).status == 0
