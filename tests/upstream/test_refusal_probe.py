"""Which responses are held back, what they are found to say, and that no byte of them is lost."""

import asyncio
import gzip
import json

import pytest

from gateway.upstream.refusal_probe import ProbeMode, ProbeResult, must_probe, probe
from tests.builders.upstream import requesting
from tests.wire_through.raw import RawUpstream, Script, render_answer, render_chunks, writing

TOO_LARGE = json.dumps(
    {
        "error": {
            "message": "This model's maximum context length is 8192 tokens.",
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        }
    }
).encode()
ROLE = b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
CONTENT = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
REFUSED = b"data: " + TOO_LARGE + b"\n\n"
BAD = "HTTP/1.1 400 Bad Request"
EVENTS = (("Content-Type", "text/event-stream"),)


async def run(script: Script, mode: ProbeMode, max_seconds: float = 5) -> tuple[ProbeResult | None, bytes]:
    """What the probe finds, None if there is none; and the body as a client would get it."""
    async with RawUpstream(script) as raw, requesting(raw.base_url) as requester:
        response = await requester.request()
        if not must_probe(response, mode):
            return None, await response.read_bounded(1 << 30)
        found = await probe(response, b"", mode, max_seconds)
        body = found.read
        if found.overflow is None and max_seconds == 5:
            body += await response.read_bounded(1 << 30)
        response.close()
        return found, body


@pytest.mark.parametrize("mode", ["errors", "start"])
@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_an_error_that_calls_the_request_too_large_is_held_whole(
    mode: ProbeMode, encoding: str
) -> None:
    body = gzip.compress(TOO_LARGE) if encoding else TOO_LARGE
    headers = [("Content-Encoding", encoding)] if encoding else []
    found, seen = await run(writing(render_answer(body, headers, BAD)), mode)
    assert found is not None and found.overflow is not None
    assert seen == body


async def test_another_error_is_passed_on_byte_for_byte() -> None:
    body = b'{"error": {"message": "no such model"}}'
    found, seen = await run(writing(render_answer(body, line=BAD)), "start")
    assert found is not None and found.overflow is None
    assert seen == body


@pytest.mark.parametrize(("mode", "is_overflow"), [("errors", False), ("start", True)])
async def test_an_error_without_text_means_too_large_only_for_a_large_request(
    mode: ProbeMode, is_overflow: bool
) -> None:
    found, _ = await run(writing(render_answer(b"", line="HTTP/1.1 413 Content Too Large")), mode)
    assert found is not None
    assert (found.overflow is not None) == is_overflow


async def test_an_error_longer_than_any_error_is_passed_on() -> None:
    body = TOO_LARGE + b" " * (2 << 20)
    found, seen = await run(writing(render_answer(body, line=BAD)), "start")
    assert found is not None and found.overflow is None
    assert seen == body


async def test_an_error_that_cannot_be_decoded_is_passed_on() -> None:
    script = writing(render_answer(b"no gzip", [("Content-Encoding", "gzip")], BAD))
    found, seen = await run(script, "start")
    assert found is not None and found.overflow is None
    assert seen == b"no gzip"


async def test_a_stream_that_begins_with_a_refusal_is_held() -> None:
    found, seen = await run(writing(*render_chunks([ROLE, REFUSED])), "start")
    assert found is not None and found.overflow is not None
    assert seen == ROLE + REFUSED


async def test_a_stream_that_stays_open_after_its_refusal_is_held_too() -> None:
    found, seen = await run(writing(*render_chunks([REFUSED])[:-1], then="hang"), "start")
    assert found is not None and found.overflow is not None
    assert seen == REFUSED


async def test_a_stream_is_read_only_up_to_its_first_content() -> None:
    head, *chunks = render_chunks([ROLE, CONTENT])
    found, seen = await run(writing(head + b"".join(chunks[:2]), then="hang"), "start", max_seconds=4)
    assert found == ProbeResult(ROLE + CONTENT, None)
    assert seen == ROLE + CONTENT


async def test_a_slow_stream_is_passed_on_after_the_given_time() -> None:
    head, *chunks = render_chunks([ROLE])
    async with asyncio.timeout(4):
        found, _ = await run(writing(head + chunks[0], then="hang"), "start", max_seconds=0.05)
    assert found == ProbeResult(ROLE, None)


async def test_a_stream_that_breaks_off_is_passed_on_as_far_as_it_came() -> None:
    head, *chunks = render_chunks([ROLE])
    found, _ = await run(writing(head + chunks[0], then="close"), "start", max_seconds=4)
    assert found == ProbeResult(ROLE, None)


@pytest.mark.parametrize(
    ("mode", "line", "is_probed"),
    [
        ("none", BAD, False),
        ("errors", BAD, True),
        ("errors", "HTTP/1.1 200 OK", False),
        ("start", "HTTP/1.1 200 OK", True),
        ("start", "HTTP/1.1 204 No Content", False),
    ],
)
async def test_the_mode_says_which_responses_are_probed(mode: ProbeMode, line: str, is_probed: bool) -> None:
    found, _ = await run(writing(render_answer(b"", EVENTS, line)), mode)
    assert (found is not None) == is_probed


async def test_what_was_read_before_counts_as_the_beginning() -> None:
    async with (
        RawUpstream(writing(render_answer(TOO_LARGE, line=BAD))) as raw,
        requesting(raw.base_url) as requester,
    ):
        response = await requester.request()
        beginning = await response.read_bounded(1 << 20)
        found = await probe(response, beginning, "errors", 5)
    assert found.read == TOO_LARGE and found.overflow is not None
