"""Makes spans and sends them to a collector, from a thread of its own.

A collector that is away costs one line in the log. Spans that do not fit in the queue meanwhile are dropped.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer, SpanKind, set_span_in_context
from opentelemetry.trace import Tracer as SpanMaker
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import __version__
from gateway.settings import Traces
from gateway.traces.carrier import FIELDS, Carried
from gateway.traces.spans import Attributes, OpenSpan

log = logging.getLogger("gateway.traces")

_NAME: Final = "gateway"
# Of one batch, with its repetitions.
_SEND_SECONDS: Final = 5.0
_BATCH_SECONDS: Final = 1.0
# A collector that is away must not hold up the end of the gateway.
_CLOSE_SECONDS: Final = 3.0
_NANOSECONDS: Final = 1_000_000_000


class Tracer:
    """exporter: in place of the collector that the settings name."""

    def __init__(self, settings: Traces, exporter: SpanExporter | None = None) -> None:
        self._settings = settings
        self._exporter = exporter
        self._provider: TracerProvider | None = None
        self._watch: CollectorWatch | None = None
        self._maker: SpanMaker = NoOpTracer()
        self._propagator = TraceContextTextMapPropagator()

    def open(self) -> None:
        """Starts the thread that sends."""
        # Each failure has several lines of the libraries, and keeps coming back.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        settings = self._settings
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample)),
            resource=Resource.create(_describe_process(settings.service)),
            shutdown_on_exit=False,
        )
        exporter = self._exporter or _make_exporter(settings)
        milliseconds = _BATCH_SECONDS * 1_000
        self._watch = CollectorWatch(exporter)
        processor = BatchSpanProcessor(self._watch, schedule_delay_millis=milliseconds)
        self._provider.add_span_processor(processor)
        self._maker = self._provider.get_tracer(_NAME, __version__)

    async def close(self) -> None:
        """Sends what is left, unless that takes too long."""
        provider = self._provider
        if provider is None:
            return
        self._maker, self._provider = NoOpTracer(), None
        has_ended, loop = asyncio.Event(), asyncio.get_running_loop()

        def shut_down() -> None:
            provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(has_ended.set)

        # Not a thread that the end of the program waits for.
        threading.Thread(target=shut_down, daemon=True, name="traces").start()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await has_ended.wait()
        except TimeoutError:
            if self._watch is not None:
                self._watch.is_silent = True
            log.warning("traces: the collector took too long at the end, so the last ones are lost")

    def begin(self, name: str, received: Mapping[str, str], attributes: Attributes) -> OpenSpan:
        """The span of a request, current from now on. received: the headers of the client's trace, if any."""
        parent = self._propagator.extract(received)
        span = self._maker.start_span(name, parent, SpanKind.SERVER, attributes)
        return OpenSpan(span, attach(set_span_in_context(span, parent)), detach)

    def begin_call(self, name: str, attributes: Attributes) -> OpenSpan:
        """The span of a call of an upstream, below the current one."""
        return OpenSpan(self._maker.start_span(name, None, SpanKind.CLIENT, attributes), None, detach)

    def carry(self, span: OpenSpan) -> Carried:
        """The headers that continue a span on the other side."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span.span))
        return {name: carrier.get(name) for name in FIELDS}

    @contextmanager
    def call(self, name: str, attributes: Attributes) -> Iterator[OpenSpan]:
        """The span of a call; an error that is raised inside ends it, too."""
        span = self.begin_call(name, attributes)
        try:
            yield span
        except BaseException as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.end()

    def record(self, name: str, seconds: float, end_seconds: float, attributes: Attributes) -> None:
        """The span of something that has ended, below the current one. end_seconds: since 1970."""
        end = int(end_seconds * _NANOSECONDS)
        begun = end - int(seconds * _NANOSECONDS)
        self._maker.start_span(name, None, SpanKind.INTERNAL, attributes, start_time=begun).end(end)


class CollectorWatch(SpanExporter):
    """Says once that the collector is away, and once that it is back.

    is_silent: from now on nothing is said, because the end has come.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_away = False
        self.is_silent = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        is_away = result is not SpanExportResult.SUCCESS
        if self.is_silent:
            return result
        if is_away and not self._is_away:
            log.warning("traces: the collector does not take them: they are dropped until it does")
        elif self._is_away and not is_away:
            log.info("traces: the collector takes them again")
        self._is_away = is_away
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _make_exporter(settings: Traces) -> SpanExporter:
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    return OTLPSpanExporter(settings.endpoint, headers=headers, timeout=_SEND_SECONDS)


def _describe_process(service: str) -> dict[str, str]:
    return {
        "service.name": service,
        "service.version": __version__,
        # Different for each worker and each replica.
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
