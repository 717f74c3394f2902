"""No log line holds content of a conversation, a query or a key, whatever goes wrong, in either format."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import UpstreamFailed, UpstreamStalled
from gateway.core.refusal.overflow import Overflow
from gateway.core.sizing.usage import Usage
from gateway.logs.render import JsonFormatter, make_text_formatter
from gateway.upstream.refusal_probe import HeldResponse
from tests.builders.downstream import open_line, settle
from tests.builders.pipeline import Reply, make_refusal, render_post, running_pipeline

_CANARY = "Canary7f3a"
_KEY = "sk-canary"
# Where a client may put text, with the place of it.
_BODIES = (
    '{"model": "toy", "messages": [{"role": "user", "content": "%s"}]}',
    '{"model": "toy", "messages": [{"role": "system", "content": "%s"}, {"role": "user", "content": "x"}]}',
    '{"model": "toy", "stream": true, "messages": [{"role": "user", "content": [{"type": "%s"}]}]}',
    '{"model": "toy", "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "%s"}]}',
    '{"model": "toy", "messages": [{"role": "%s", "content": "x"}]}',
    '{"model": "toy", "messages": "%s"}',
    '{"model": "toy", "%s": [',
    "%s",
    '{"model": "toy", "input": "%s", "previous_response_id": "r1"}',
    '{"model": "toy", "max_tokens": 9, "messages": [{"role": "user", "content": "/compact %s"}]}',
)
_PATHS = (
    *("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/files"),
    *("/x/chat/completions", "/../y"),
)
_LONG = '{"model": "toy", "messages": [%s]}'


def _quote_back() -> HeldResponse:
    return make_refusal(Overflow(), f'{{"error": {{"message": "{_CANARY} is too long"}}}}'.encode())


# What the upstream does, each of them anew: some are changed by their use.
_REPLIES = (
    lambda: Reply(usage=Usage(20, 2), body=_CANARY.encode()),
    lambda: Reply(usage=Usage(900_000, 2)),
    lambda: Reply(status=500, body=_CANARY.encode(), has_error=True),
    lambda: UpstreamFailed("toy: connection refused"),
    lambda: UpstreamStalled("toy: was silent"),
    lambda: RuntimeError("a mistake of ours"),
    _quote_back,
)


@contextmanager
def collecting() -> Iterator[list[str]]:
    """Every line of the gateway's loggers, at debug, in both formats."""
    lines: list[str] = []
    formatters = (make_text_formatter(""), JsonFormatter("worker-1"))

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.extend(formatter.format(record) for formatter in formatters)

    handler, logger = Collector(), logging.getLogger("gateway")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _make_body(shape: str, *, is_long: bool) -> bytes:
    body = shape % _CANARY
    if is_long:
        # Far beyond the window, so that something has to be compacted, and fails.
        turn = {"role": "user", "content": f"{_CANARY} " * 2_000}, {"role": "assistant", "content": "ok"}
        body = _LONG % ", ".join(json.dumps(message) for _ in range(12) for message in turn)
    return body.encode()


async def _talk(requests: list[tuple[bytes, str]], replies: list[int]) -> None:
    async with running_pipeline() as pipeline:
        pipeline.relay.script = [_REPLIES[number]() for number in replies]
        for body, path in requests:
            async with open_line(pipeline.proxy.respond) as line:
                await line.send(render_post(body, f"{path}?key={_KEY}", [f"x-api-key: {_KEY}", "x-note: "]))
                await settle()


@given(
    st.lists(
        st.tuples(st.sampled_from(_BODIES), st.booleans(), st.sampled_from(_PATHS)), min_size=1, max_size=4
    ),
    st.lists(st.integers(0, len(_REPLIES) - 1), max_size=8),
)
def test_no_line_holds_content_or_a_key(requests: list[tuple[str, bool, str]], replies: list[int]) -> None:
    with collecting() as lines:
        bodies = [(_make_body(shape, is_long=is_long), path) for shape, is_long, path in requests]
        asyncio.run(_talk(bodies, replies))
    assert lines, "each request has a line at debug"
    assert [line for line in lines if _CANARY in line or _KEY in line or "sk-toy" in line] == []


def test_a_line_with_a_canary_would_be_found() -> None:
    with collecting() as lines:
        logging.getLogger("gateway.proxy").debug("got %s", _CANARY)
    assert [_CANARY in line for line in lines] == [True, True]
