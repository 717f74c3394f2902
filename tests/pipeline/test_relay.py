"""One exchange, from call to response: forwarded, repeated without the usage option, held back, or failed."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.bounds.memory_budget import MemoryBudget
from gateway.core.errors import RequestRefused, UpstreamFailed, UpstreamStalled
from gateway.downstream.request_note import RequestNote
from gateway.downstream.responder import Responder
from gateway.outgoing.call_maker import Additions
from gateway.pipeline.exchange import Exchange, FailedFollowUp, Forwarded, Outcome
from gateway.pipeline.relay import Relay
from gateway.settings import UpstreamSettings, load_settings
from gateway.upstream.sending import UpstreamCall
from tests.builders.exchanges import serve
from tests.builders.idle_clock import stop_idle_clock
from tests.builders.upstream import make_call
from tests.wire_through.raw import RawUpstream, Script, in_turn, render_answer, render_chunks, writing

BAD = "HTTP/1.1 400 Bad Request"
OPTION_REFUSED = render_answer(b'{"error": {"message": "unknown field stream_options"}}', line=BAD)
TOO_LARGE = json.dumps(
    {"error": {"message": "This model's maximum context length is 8 tokens.", "type": "x", "code": "y"}}
).encode()
DELTA = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'


_USAGE: Additions = frozenset({"usage"})


async def answer_with(call: UpstreamCall) -> UpstreamCall:
    return call


@asynccontextmanager
async def relaying(
    script: Script, tmp_path: Path, *, idle_seconds: float = 60
) -> AsyncIterator[tuple[Relay, UpstreamSettings, RawUpstream]]:
    async with RawUpstream(script) as raw:
        file = tmp_path / "gateway.yaml"
        file.write_text(
            f'upstreams: {{default: {{base_url: "{raw.base_url}", idle_seconds: {idle_seconds}}}}}\n'
        )
        settings = load_settings(file, {})
        relay = Relay(settings, MemoryBudget(1 << 30))
        await relay.open()
        try:
            yield relay, settings.upstreams["default"], raw
        finally:
            await relay.close()


async def test_a_request_and_its_response_are_forwarded(tmp_path: Path) -> None:
    async with relaying(writing(render_answer(b"pong")), tmp_path) as (relay, upstream, raw):
        exchange = Exchange(call=make_call(upstream, body=b"ping"), headers={"X-Own": "1"})
        sent = await serve(lambda client: relay.forward(exchange, client))
        assert sent.result == Forwarded()
        assert (sent.body, raw.received[0].body) == (b"pong", b"ping")
        assert b"X-Own: 1" in sent.head


async def test_the_time_of_the_upstream_is_noted(tmp_path: Path) -> None:
    async with relaying(writing(render_answer(b"pong")), tmp_path) as (relay, upstream, _):
        notes = list[RequestNote]()

        async def forward(client: Responder) -> Forwarded:
            notes.append(client.note)
            return await relay.forward(Exchange(call=make_call(upstream, body=b"ping")), client)

        await serve(forward)
    (note,) = notes
    assert note.upstream == "default" and note.name_plan() == "relayed"
    assert note.first_byte_seconds is not None
    assert 0 < note.first_byte_seconds <= note.upstream_seconds


async def test_an_error_of_the_upstream_is_a_response_like_any_other(tmp_path: Path) -> None:
    script = writing(render_answer(b"busy", line="HTTP/1.1 503 Busy"))
    async with relaying(script, tmp_path) as (relay, upstream, _):
        exchange = Exchange(call=make_call(upstream, body=b"ping"))
        sent = await serve(lambda client: relay.forward(exchange, client))
    assert sent.head.startswith(b"HTTP/1.1 503 Busy") and sent.body == b"busy"


async def test_a_refused_usage_option_is_left_out_and_the_refusal_is_reported(tmp_path: Path) -> None:
    script = in_turn(writing(OPTION_REFUSED), writing(*render_chunks([DELTA])))
    async with relaying(script, tmp_path) as (relay, upstream, raw):
        plain = make_call(upstream, body=b"plain")
        asking = make_call(upstream, body=b"asking")
        exchange = Exchange(call=asking, additions=_USAGE, make_with=lambda _: answer_with(plain))
        sent = await serve(lambda client: relay.forward(exchange, client))
        assert [seen.body for seen in raw.received] == [b"asking", b"plain"]
    assert sent.result == Forwarded(refused=frozenset({"usage"}))
    assert sent.body == DELTA


async def test_making_a_call_without_the_option_is_no_silence_of_the_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = stop_idle_clock(monkeypatch)
    script = in_turn(writing(OPTION_REFUSED), writing(*render_chunks([DELTA])))
    async with relaying(script, tmp_path, idle_seconds=0.2) as (relay, upstream, _):
        call = make_call(upstream, body=b"{}")

        async def make_late(_: Additions) -> UpstreamCall:
            await clock.let_pass(60)
            await clock.let_pass(60)
            return call

        exchange = Exchange(call=call, additions=_USAGE, make_with=make_late)
        sent = await serve(lambda client: relay.forward(exchange, client))
    assert sent.body == DELTA


async def test_a_request_refused_without_the_option_too_says_nothing_about_the_option(
    tmp_path: Path,
) -> None:
    async with relaying(writing(OPTION_REFUSED), tmp_path) as (relay, upstream, raw):
        call = make_call(upstream, body=b"{}")
        exchange = Exchange(call=call, additions=_USAGE, make_with=lambda _: answer_with(call))
        sent = await serve(lambda client: relay.forward(exchange, client))
        assert len(raw.received) == 2
    assert sent.result == Forwarded()
    assert sent.head.startswith(b"HTTP/1.1 400")


async def test_another_error_is_not_tried_again(tmp_path: Path) -> None:
    async with relaying(writing(render_answer(b"no", line=BAD)), tmp_path) as (relay, upstream, raw):
        call = make_call(upstream, body=b"{}")
        exchange = Exchange(call=call, additions=_USAGE, make_with=lambda _: answer_with(call))
        sent = await serve(lambda client: relay.forward(exchange, client))
        assert len(raw.received) == 1
    assert sent.body == b"no"


async def test_a_response_that_calls_the_request_too_large_is_held_and_can_be_sent_later(
    tmp_path: Path,
) -> None:
    outcomes: list[Outcome] = []
    async with relaying(writing(render_answer(TOO_LARGE, line=BAD)), tmp_path) as (relay, upstream, _):
        call = make_call(upstream, body=b"{}")
        exchange = Exchange(call=call, probe="errors", on_outcome=outcomes.append)
        sent = await serve(lambda client: relay.forward(exchange, client))
        held = sent.result.held
        assert held is not None and (sent.head, sent.body, outcomes) == (b"", b"", [])
        given = await serve(lambda client: relay.send_held(held, {"X-Own": "1"}, client))
    assert given.head.startswith(b"HTTP/1.1 400 Bad Request\r\nX-Own: 1\r\n") and given.body == TOO_LARGE


async def test_after_a_keep_alive_an_error_is_an_event_of_the_stream(tmp_path: Path) -> None:
    async with relaying(writing(render_answer(TOO_LARGE, line=BAD)), tmp_path) as (relay, upstream, _):
        exchange = Exchange(call=make_call(upstream, body=b"{}"))
        sent = await serve(lambda client: relay.forward(exchange, client), is_committed=True)
    assert b"maximum context length" in sent.body and not sent.is_whole


async def test_a_missing_response_is_a_failed_upstream(tmp_path: Path) -> None:
    async with relaying(writing(then="close"), tmp_path) as (relay, upstream, _):
        exchange = Exchange(call=make_call(upstream, body=b"{}"))
        with pytest.raises(UpstreamFailed):
            await serve(lambda client: relay.forward(exchange, client))


async def test_an_upstream_that_stays_silent_is_a_stalled_one(tmp_path: Path) -> None:
    async with relaying(writing(then="hang"), tmp_path, idle_seconds=0.1) as (relay, upstream, _):
        exchange = Exchange(call=make_call(upstream, body=b"{}"))
        with pytest.raises(UpstreamStalled):
            await serve(lambda client: relay.forward(exchange, client))


async def test_a_response_of_another_gateway_is_refused(tmp_path: Path) -> None:
    script = writing(render_answer(b"{}", [("x-gateway-plan", "passthrough")]))
    async with relaying(script, tmp_path) as (relay, upstream, _):
        exchange = Exchange(call=make_call(upstream, body=b"{}"))
        with pytest.raises(RequestRefused) as refused:
            await serve(lambda client: relay.forward(exchange, client))
    assert refused.value.status == 508


async def test_what_an_error_names_is_left_out_step_by_step(tmp_path: Path) -> None:
    """First the option, then the tool: each refusal names one of them."""
    tool_refused = render_answer(b'{"error": {"message": "unknown tool recall_history"}}', line=BAD)
    script = in_turn(writing(OPTION_REFUSED), writing(tool_refused), writing(*render_chunks([DELTA])))
    asked = list[Additions]()
    async with relaying(script, tmp_path) as (relay, upstream, raw):
        call = make_call(upstream, body=b"{}")

        async def make_with(additions: Additions) -> UpstreamCall:
            asked.append(additions)
            return call

        both: Additions = frozenset({"usage", "tool"})
        exchange = Exchange(call=call, additions=both, make_with=make_with)
        sent = await serve(lambda client: relay.forward(exchange, client))
        assert len(raw.received) == 3
    assert asked == [frozenset({"tool"}), frozenset()]
    assert sent.result == Forwarded(refused=both)


async def test_an_error_in_place_of_a_follow_up_is_for_the_caller(tmp_path: Path) -> None:
    script = writing(render_answer(b"busy", line="HTTP/1.1 503 Busy"))
    async with relaying(script, tmp_path) as (relay, upstream, _):
        exchange = Exchange(call=make_call(upstream, body=b"{}"), is_follow_up=True)
        sent = await serve(lambda client: relay.forward(exchange, client), is_committed=True)
    assert sent.result == Forwarded(failed=FailedFollowUp(503, b"busy"))
    assert b"busy" not in sent.body
