"""Whatever bytes a client sends: the gateway answers or closes, and the upstream gets what can be read in one
way only.

Some cases run at the same time on connections of their own. Behind each case goes a plain last request, so
that every connection ends: with the answer to it, with an error, or at one of the gateway's bounds.
"""

import asyncio
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.properties.odd_bytes import Odd, framed, misframed
from tests.properties.strict_upstream import StrictUpstream, make_reply_body
from tests.toy.product import serve
from tests.toy.raw import ask, read_body, read_head, render_request

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Of a batch that fails; the assertion shows the one case that matters.
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]

# So many cases make an example; the bounds of those that never end their request run at the same time.
# The first example that hypothesis draws is the simplest one, where all cases are alike.
CASES = 100
# An assertion quotes the one case that failed; making a batch of cases smaller would take minutes.
UNSHRUNK = (Phase.explicit, Phase.generate)
# Generous: every bound is far shorter.
PATIENCE_SECONDS = 60.0
SETTINGS = """
store: "memory:"
admin: {{port: 0}}
upstreams:
  default: {{base_url: "{base_url}", discover: false, include_usage: false}}
models:
  - {{match: "*", context: 1000000}}
"""
# Bytes that are no request often end in a wait for more of them.
IMPATIENT = "bounds: {head_seconds: 0.2, stall_seconds: 0.2}\n"
# It is so long that a body which ends within it leaves something that is no request.
LAST = b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Long: %s\r\nConnection: close\r\n\r\n" % (b"x" * 7_777)
PLAIN = render_request(body=b'{"model":"m","messages":[]}')
# What the gateway may answer by itself: the client's fault, or a version or method that it does not have.
OWN = {400, 404, 405, 408, 411, 413, 414, 415, 417, 421, 426, 431, 501, 505}


class Arena:
    """errors: what the gateway logged as such."""

    def __init__(self, port: int, upstream: StrictUpstream, errors: list[str]) -> None:
        self.port = port
        self.upstream = upstream
        self.errors = errors


class Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def patient() -> AsyncIterator[Arena]:
    """However slow this machine is, a whole request arrives in time."""
    async with opening("") as arena:
        yield arena


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient() -> AsyncIterator[Arena]:
    async with opening(IMPATIENT) as arena:
        yield arena


@asynccontextmanager
async def opening(bounds: str) -> AsyncIterator[Arena]:
    errors = Errors()
    logging.getLogger().addHandler(errors)
    async with (
        StrictUpstream() as upstream,
        serve(SETTINGS.format(base_url=upstream.base_url) + bounds) as gateway,
    ):
        yield Arena(gateway.port, upstream, errors.found)
    logging.getLogger().removeHandler(errors)


@dataclass(frozen=True)
class Answers:
    """What came back on one connection. first: status and body of the first answer, None without one."""

    raw: bytes
    was_reset: bool


async def play(port: int, odd: Odd) -> Answers:
    """Sends the case and the last request, and reads until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    received, was_reset = b"", False
    try:
        sent = odd.sent + LAST
        ends = odd.cuts if odd.leaves else (*odd.cuts, len(sent))
        for start, end in pairwise((0, *ends)):
            writer.write(sent[start:end])
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not odd.leaves and (piece := await reader.read(1 << 20)):
                received += piece
    except TimeoutError:
        raise AssertionError(f"no end of the connection after {received!r} {odd}") from None
    except ConnectionError:
        was_reset = True
    finally:
        writer.transport.abort()
    return Answers(received, was_reset)


async def read_answers(raw: bytes) -> list[tuple[int, bytes, bool]]:
    """Status, body and wholeness of each answer. Interim answers are left out."""
    reader = asyncio.StreamReader(limit=1 << 24)
    reader.feed_data(raw)
    reader.feed_eof()
    found = []
    while (head := await read_head(reader)) is not None:
        assert re.fullmatch(rb"HTTP/1\.[01] [1-5]\d\d [\x20-\x7e]*", head.line), raw[:500]
        status = int(head.line.split(b" ")[1])
        if status == 100:
            continue
        body, is_whole = await read_body(reader, head, is_request=False)
        found.append((status, body, is_whole))
    return found


async def check(arena: Arena, cases: Sequence[Odd]) -> list[list[tuple[int, bytes, bool]]]:
    """Runs all cases, and checks what holds for any bytes. The answers of each case."""
    arena.upstream.arrived.clear()
    played = await asyncio.gather(*(play(arena.port, odd) for odd in cases))
    found: list[list[tuple[int, bytes, bool]]] = []
    for odd, answers in zip(cases, played, strict=True):
        if odd.leaves or b"HEAD" in odd.sent:
            found.append([])
            continue
        parsed = await read_answers(answers.raw)
        assert parsed or answers.was_reset or not odd.sent.strip(b"\r\n"), odd
        for status, body, is_whole in parsed:
            assert status == 200 or status in OWN, f"{status} {body!r} {odd}"
            assert is_whole or answers.was_reset, f"{answers} {odd}"
        found.append(parsed)
    assert arena.upstream.violations == []
    assert arena.errors == []
    assert not any(b"healthz" in request.line for request in arena.upstream.arrived)
    arrived = Counter(request.find(b"x-case") for request in arena.upstream.arrived)
    for at, odd in enumerate(cases):
        assert arrived[b"%d;" % at] <= odd.sent.count(b"X-Case: %d;" % at), odd
    async with asyncio.timeout(PATIENCE_SECONDS):
        # Where the bounds are short, a busy machine may be too slow for a plain request, too.
        while (status := (await ask(arena.port, PLAIN)).status) == 408:
            pass
    assert status == 200
    return found


@st.composite
def batches(draw: st.DrawFn, make: object) -> list[Odd]:
    return [draw(make(case)) for case in range(CASES)]  # type: ignore[operator]


@settings(examples(5, exhaustive=100), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(cases=batches(framed))
async def test_any_body_of_a_well_framed_request_arrives_as_it_was_sent(
    patient: Arena, cases: list[Odd]
) -> None:
    found = await check(patient, cases)
    arrived = {request.find(b"x-case"): request for request in patient.upstream.arrived}
    for at, (odd, answers) in enumerate(zip(cases, found, strict=True)):
        request = arrived.get(b"%d;" % at)
        if odd.leaves:
            assert request is None or request.body == odd.body
            continue
        assert len(answers) == 2, f"{answers} {odd}"
        (status, body, _), (last, _, _) = answers
        assert last == 200
        if request is None:
            assert status in OWN and "error" in json.loads(body), f"{status} {odd}"
            continue
        assert request.body == odd.body, odd
        assert (status, body) == (200, make_reply_body(request.body))


@settings(examples(5, exhaustive=100), phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(cases=batches(misframed))
async def test_any_bytes_end_in_an_answer_and_never_in_a_second_reading(
    impatient: Arena, cases: list[Odd]
) -> None:
    await check(impatient, cases)
