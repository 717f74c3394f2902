"""OpenTelemetry: a span for each request, its upstream calls, and compactions. Off by default.

Spans hold ids, names and numbers, and no content of a conversation. They are sent from a thread of its own. A
collector that is away costs one line in the log; spans that do not fit in the queue meanwhile are dropped.
The libraries are an extra, so this module is imported only where traces are on.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer, Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace import Tracer as SpanMaker
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway import __version__
from gateway.http.answered import Answered
from gateway.http.client import UpstreamCall
from gateway.http.reply import Reply
from gateway.http.request import Request
from gateway.http.server import Handler
from gateway.settings import Traces
from gateway.wire.reading import OnEvent, ResponseDocument, read_nested, read_text
from gateway.wire.sse import SseEvent

log = logging.getLogger("gateway.traces")

Fact = str | bool | int | float | Sequence[str] | None

# GenAI conventions: github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai/gen-ai-spans.md). They
# are not stable yet, so a name changes here only. What they have no name for begins with `gateway.`.
_NAMES: Final = {
    "operation": "gen_ai.operation.name",
    "provider": "gen_ai.provider.name",
    "conversation": "gen_ai.conversation.id",
    # Only ever true: "SHOULD NOT be set to false".
    "compacted": "gen_ai.conversation.compacted",
    "request_model": "gen_ai.request.model",
    "requested_tokens": "gen_ai.request.max_tokens",
    "is_streaming": "gen_ai.request.stream",
    "response_model": "gen_ai.response.model",
    "response_id": "gen_ai.response.id",
    "finish_reasons": "gen_ai.response.finish_reasons",
    "first_byte_seconds": "gen_ai.response.time_to_first_chunk",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
    "error": "error.type",
    "status": "http.response.status_code",
    "method": "http.request.method",
    "server": "server.address",
    "port": "server.port",
    "format": "gateway.format",
    "plan": "gateway.plan",
    "tenant": "gateway.tenant",
    "upstream": "gateway.upstream",
    "received": "gateway.tokens.received",
    "sent": "gateway.tokens.sent",
    "own_seconds": "gateway.own_seconds",
    "waited_seconds": "gateway.waited_seconds",
    "trigger": "gateway.compaction.trigger",
    "reason": "gateway.compaction.reason",
    "result": "gateway.compaction.result",
    "covers": "gateway.compaction.covers",
    "calls": "gateway.compaction.calls",
    "riding_calls": "gateway.compaction.riding_calls",
    "tokens_before": "gateway.compaction.tokens_before",
    "tokens_after": "gateway.compaction.tokens_after",
}
# Plans that send less than the whole conversation.
_COMPACTED: Final = frozenset({"pivot", "pivot+pruned", "digest", "pruned", "cut"})
# Upstreams and clients choose these, and the word for an end; this much is sent.
_FOREIGN: Final = frozenset({"request_model", "response_model", "response_id"})
_NAME_CHARS: Final = 128
# By the end of the host's name.
_PROVIDERS: Final = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "openai.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "api.mistral.ai": "mistral_ai",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.x.ai": "x_ai",
    "api.perplexity.ai": "perplexity",
    "api.cohere.com": "cohere",
}
# Headers that carry a trace from one program to the next: W3C Trace Context.
_CARRIED: Final = ("traceparent", "tracestate")
# Of one batch, with its repetitions.
_SEND_SECONDS: Final = 5.0
_BATCH_SECONDS: Final = 1.0
# A collector that is away must not hold up the end of the gateway.
_CLOSE_SECONDS: Final = 3.0
_NANOSECONDS: Final = 1_000_000_000
_MINIMUM_ERROR: Final = 400
# The first events of a stream name the model.
_MOST_EVENTS: Final = 4


class Tracer:
    def __init__(self, settings: Traces) -> None:
        self._settings = settings
        self._provider: TracerProvider | None = None
        self._watch: _CollectorWatch | None = None
        self._maker: SpanMaker = NoOpTracer()
        self._propagator = TraceContextTextMapPropagator()

    def open(self) -> None:
        """Starts the thread that sends."""
        # Each failure has several lines of the libraries, and keeps coming back.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        settings = self._settings
        process = {
            "service.name": settings.service,
            "service.version": __version__,
            # Different for each worker and each replica.
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        }
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(settings.sample)),
            resource=Resource.create(process),
            shutdown_on_exit=False,
        )
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        self._watch = _CollectorWatch(
            OTLPSpanExporter(settings.endpoint, headers=headers, timeout=_SEND_SECONDS)
        )
        milliseconds = _BATCH_SECONDS * 1_000
        self._provider.add_span_processor(BatchSpanProcessor(self._watch, schedule_delay_millis=milliseconds))
        self._maker = self._provider.get_tracer("gateway", __version__)

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

    def around(self, respond: Handler) -> Handler:
        """The same with a span for each request, the current one meanwhile. It continues the client's
        trace, and says what is known at last.
        """

        async def respond_traced(request: Request, reply: Reply) -> None:
            headers, method = request.head.headers, request.head.method
            # A list in several lines is joined.
            received = {name: ",".join(found) for name in _CARRIED if (found := headers.getall(name, None))}
            parent = self._propagator.extract(received)
            span = self._maker.start_span("relay", parent, SpanKind.SERVER, {_NAMES["method"]: method})
            token = attach(set_span_in_context(span, parent))
            try:
                await respond(request, reply)
            finally:
                detach(token)
                self._end(span, reply.answered)

        return respond_traced

    def _end(self, span: Span, answered: Answered) -> None:
        self.describe(span, **_list_facts(answered))
        if answered.is_followed:
            span.update_name(_name_chat(answered.model))
            self.describe(span, **_list_followed_facts(answered))
        if not answered.status:
            _fail(span, "client_gone")
        span.end()

    def relay(self, call: UpstreamCall) -> AbstractContextManager[Span]:
        """The span of a client's request on its way to an upstream."""
        method, url = call.head.method, call.head.url
        facts = {"method": method, "upstream": call.upstream.name, "server": url.host or ""}
        return self.call(method, port=url.port or 0, **facts)

    @contextmanager
    def call(self, name: str, **facts: Fact) -> Iterator[Span]:
        """The span of a call of an upstream, below the current one; an error raised inside ends it."""
        span = self._maker.start_span(name, None, SpanKind.CLIENT)
        self.describe(span, **facts)
        try:
            yield span
        except BaseException as error:
            _fail(span, type(error).__name__)
            raise
        finally:
            span.end()

    def summary_call(self, model: str, url: str, upstream: str) -> AbstractContextManager[Span]:
        facts = {"request_model": model, "upstream": upstream, "provider": _find_provider(url, upstream)}
        return self.call(_name_chat(model), operation="chat", **facts)

    def record_compaction(self, seconds: float, end_seconds: float, **facts: Fact) -> None:
        """The span of one that has ended, below the current one. end_seconds: since 1970."""
        end = int(end_seconds * _NANOSECONDS)
        begun = end - int(seconds * _NANOSECONDS)
        span = self._maker.start_span("compact", None, SpanKind.INTERNAL, start_time=begun)
        self.describe(span, operation="compact", **facts)
        span.end(end)

    def describe(self, span: Span, **facts: Fact) -> None:
        """facts: by the words of the table. None: not known. A status from 400 on is a failure."""
        for word, value in facts.items():
            if value is not None:
                is_long = word in _FOREIGN and isinstance(value, str)
                span.set_attribute(_NAMES[word], str(value)[:_NAME_CHARS] if is_long else value)
        status = facts.get("status")
        if isinstance(status, int) and status >= _MINIMUM_ERROR:
            _fail(span, str(status))

    def carry(self, span: Span) -> dict[str, str | None]:
        """Headers that continue a span on the other side; None for one that must not be sent."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, set_span_in_context(span))
        return {name: carrier.get(name) for name in _CARRIED}

    def with_carried(self, headers: Sequence[tuple[str, str]], span: Span) -> list[tuple[str, str]]:
        """Headers that continue another span than before."""
        kept = [pair for pair in headers if pair[0].lower() not in _CARRIED]
        return kept + [(name, value) for name, value in self.carry(span).items() if value is not None]

    def watch(self, answered: Answered, on_event: OnEvent | None) -> OnEvent:
        """Reads from the first events of a response which model has answered, besides on_event."""
        left = _MOST_EVENTS

        def both(event: SseEvent, documents: list[ResponseDocument]) -> None:
            nonlocal left
            if on_event is not None:
                on_event(event, documents)
            if left:
                left = 0 if any(_read_names(each, answered) for each in documents) else left - 1

        return both


class _CollectorWatch(SpanExporter):
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


def _read_names(document: ResponseDocument, answered: Answered) -> bool:
    """Whether the model is named: in the object, or in the response that an event of a stream has in it."""
    for named in (document, document.response, read_nested(document.message)):
        if named is not None and (model := read_text(named.model)):
            answered.response_model, answered.response_id = model, read_text(named.id) or None
            return True
    return False


def _list_facts(it: Answered) -> dict[str, Fact]:
    """By the words of the table."""
    usage, reason = it.usage, it.finish_reason
    return {
        "format": it.format,
        "plan": it.plan_name,
        "upstream": it.upstream,
        "compacted": it.plan_name in _COMPACTED or None,
        "status": it.status or None,
        "input_tokens": usage and usage.prompt_tokens,
        "output_tokens": usage and usage.output_tokens,
        "cached_tokens": usage and usage.cached_tokens,
        "cache_write_tokens": usage and usage.cache_write_tokens,
        "finish_reasons": (reason[:_NAME_CHARS],) if reason is not None else None,
        "response_model": it.response_model,
        "response_id": it.response_id,
        "first_byte_seconds": it.first_byte_seconds,
        "own_seconds": it.own_seconds,
        "waited_seconds": it.waited_seconds or None,
    }


def _list_followed_facts(it: Answered) -> dict[str, Fact]:
    """The same of a request that is followed."""
    return {
        "operation": "chat",
        "provider": _find_provider(it.base_url, it.chosen_upstream),
        "conversation": it.conversation,
        "tenant": it.tenant,
        "request_model": it.model,
        "requested_tokens": it.requested_tokens,
        "is_streaming": it.is_streaming or None,
        "received": it.received,
        "sent": it.sent,
    }


def _fail(span: Span, kind: str) -> None:
    """kind: the class of an error, or a status. Texts of errors may quote a conversation."""
    span.set_attribute(_NAMES["error"], kind)
    span.set_status(Status(StatusCode.ERROR))


def _name_chat(model: str) -> str:
    return f"chat {model[:_NAME_CHARS]}"


def _find_provider(base_url: str, upstream: str) -> str:
    """upstream: its name in the settings, which stands for a provider that the conventions do not know."""
    host = urlsplit(base_url).hostname or ""
    found = (name for ending, name in _PROVIDERS.items() if host == ending or host.endswith(f".{ending}"))
    return next(found, upstream)
