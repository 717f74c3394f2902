"""A collector of traces on a port of its own, as OTLP over HTTP asks for it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.toy.running import wait_until

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
