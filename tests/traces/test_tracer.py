"""Spans without a socket, in the memory of the process."""

import logging
import socket
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra [otel] is not installed")

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.settings import Traces
from gateway.traces.tracer import CollectorWatch, Tracer

_HERE = Traces(endpoint="http://127.0.0.1:1")


class Opened:
    """A tracer, and what it sends."""

    def __init__(self, settings: Traces = _HERE) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = Tracer(settings, self._exporter)
        self.tracer.open()

    async def close(self) -> dict[str, ReadableSpan]:
        await self.tracer.close()
        return {span.name: span for span in self._exporter.get_finished_spans()}


async def test_what_begins_inside_a_request_is_below_its_span() -> None:
    opened = Opened()
    request = opened.tracer.begin("relay", {}, {"a": 1})
    with opened.tracer.call("POST", {"b": "x"}) as call:
        call.describe({"c": True, "d": None})
    opened.tracer.record("compact", 2.0, 100.0, {"e": 5})
    request.rename("chat toy")
    request.end()
    opened.tracer.begin("alone", {}, {}).end()
    spans = await opened.close()
    root = spans["chat toy"]
    assert spans["POST"].parent == spans["compact"].parent == root.context
    assert (spans["POST"].attributes, root.attributes) == ({"b": "x", "c": True}, {"a": 1})
    assert (spans["compact"].start_time, spans["compact"].end_time) == (98 * 10**9, 100 * 10**9)
    assert root.parent is None and spans["alone"].parent is None
    assert root.resource.attributes["service.name"] == "context-window-gateway"


async def test_an_error_is_named_without_its_text() -> None:
    opened = Opened()
    with pytest.raises(ValueError, match="hunter2"), opened.tracer.call("POST", {}):
        raise ValueError("hunter2")
    span = (await opened.close())["POST"]
    assert span.attributes == {"error.type": "ValueError"} and span.events == ()
    assert "hunter2" not in span.to_json()


async def test_a_share_of_nothing_sends_nothing_and_still_carries_a_trace() -> None:
    opened = Opened(Traces(endpoint="http://127.0.0.1:1", sample=0.0))
    span = opened.tracer.begin("relay", {}, {})
    carried = opened.tracer.carry(span)
    span.end()
    assert await opened.close() == {}
    parent = carried["traceparent"]
    assert parent is not None and int(parent[-2:], 16) & 1 == 0
    assert carried["tracestate"] is None


async def test_after_the_end_nothing_is_recorded() -> None:
    opened = Opened()
    before = await opened.close()
    with opened.tracer.call("POST", {}) as span:
        assert not span.span.is_recording()
    await opened.tracer.close()
    assert before == {}


async def test_the_end_does_not_wait_for_a_collector_that_does_not_respond(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracer = Tracer(Traces(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}"))
        tracer.open()
        tracer.begin("relay", {}, {}).end()
        with caplog.at_level(logging.WARNING):
            await tracer.close()
    assert "took too long at the end" in caplog.text


class Moody(InMemorySpanExporter):
    """Takes spans, or not."""

    takes = False

    def export(self, spans: Any) -> SpanExportResult:
        return SpanExportResult.SUCCESS if self.takes else SpanExportResult.FAILURE


def test_a_collector_that_comes_and_goes_has_a_line_for_each(caplog: pytest.LogCaptureFixture) -> None:
    moody = Moody()
    watch = CollectorWatch(moody)
    with caplog.at_level(logging.INFO):
        for moody.takes in (True, False, False, True, True, False):
            watch.export(())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
