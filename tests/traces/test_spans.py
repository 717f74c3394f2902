import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra [otel] is not installed")

from opentelemetry.context import detach
from opentelemetry.sdk.trace import (
    Span,
    TracerProvider,
)
from opentelemetry.trace import StatusCode

from gateway.traces.spans import OpenSpan


def test_a_span_takes_what_is_known_and_fails_by_a_kind() -> None:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("toy").start_span("a")
    assert isinstance(span, Span)
    opened = OpenSpan(span, None, detach)
    opened.rename("b")
    opened.describe({"x": 1, "y": None, "z": ("s",)})
    opened.fail("404")
    opened.end()
    assert (span.name, span.status.status_code) == ("b", StatusCode.ERROR)
    assert span.attributes == {"x": 1, "z": ("s",), "error.type": "404"}
