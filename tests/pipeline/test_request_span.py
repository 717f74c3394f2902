"""The end of a request's span. The rest is in tests/traces/test_served_traces.py."""

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra [otel] is not installed")

from opentelemetry.context import detach
from opentelemetry.sdk.trace import Span, TracerProvider

from gateway.core.sizing.usage import Usage
from gateway.downstream.request_note import RequestNote
from gateway.pipeline.request_span import end_span
from gateway.traces.spans import OpenSpan


def end(note: RequestNote, status: int) -> Span:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("toy").start_span("a")
    assert isinstance(span, Span)
    end_span(OpenSpan(span, None, detach), note, status, note.read_seconds + 3)
    return span


def test_it_says_what_was_done() -> None:
    note = RequestNote()
    note.plan, note.conversation, note.received, note.sent = "digest", "c1", 900, 100
    note.usage, note.finish_reason, note.waited_seconds = Usage(110, 5, 70, 8), "stop", 1.0
    note.note_recall(2, Usage(90, 3))
    note.add_exchange("toy", 0.0, 0.5, 1.0)
    said = dict(end(note, 200).attributes or {})
    assert said.pop("gateway.own_seconds") == pytest.approx(1.0)
    assert said == {
        "gateway.format": "other",
        "gateway.plan": "digest",
        "gateway.upstream": "toy",
        "gen_ai.conversation.compacted": True,
        "http.response.status_code": 200,
        "gateway.tokens.received": 900,
        "gateway.tokens.sent": 100,
        "gen_ai.usage.input_tokens": 110,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 70,
        "gen_ai.usage.cache_creation.input_tokens": 8,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.5,
        "gateway.waited_seconds": 1.0,
        "gateway.recall.searches": 2,
    }


@pytest.mark.parametrize(("status", "kind"), [(401, "401"), (0, "client_gone")])
def test_what_failed_is_said_by_its_status(status: int, kind: str) -> None:
    span = end(RequestNote(), status)
    assert span.attributes is not None and span.attributes["error.type"] == kind
    assert not span.status.is_ok
