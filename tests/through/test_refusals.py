"""The window is unknown or smaller than configured. The agent works on without an error."""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import aiohttp
import pytest

from tests.toy import house
from tests.toy.agent import Shape, find_tokens, make_session
from tests.toy.chat import CHAT
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.dialect import Dialect
from tests.toy.dialects import DIALECTS
from tests.toy.messages import MESSAGES
from tests.toy.product import serve
from tests.toy.reply import Reply, render_named
from tests.toy.responses import RESPONSES
from tests.toy.running import Answer, Pace, Run, ask, run_session
from tests.toy.upstream import Seen, ToyUpstream

_JSON: Final = (("Content-Type", "application/json"),)
_TEXT: Final = (("Content-Type", "text/plain"),)
_SSE: Final = (("Content-Type", "text/event-stream"),)

Render = Callable[[str, bool], RawAnswer]


def _object(status: int, value: object) -> RawAnswer:
    return RawAnswer(status=status, headers=_JSON, pieces=(json.dumps(value).encode(),))


def _event(value: object, *before: bytes) -> RawAnswer:
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    return RawAnswer(status=200, headers=_SSE, pieces=(*before, data), length=False)


def _error(text: str, code: str | None = None) -> dict[str, object]:
    return {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": code}}


def _first_chunk() -> bytes:
    chunk = {
        "id": "a",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"role": "assistant"}}],
    }
    return b": ping\n\ndata: " + json.dumps(chunk).encode() + b"\n\n"


def _finished(stream: bool) -> RawAnswer:
    reason = "model_context_window_exceeded"
    if stream:
        chunk = {
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
        }
        return _event(chunk, _first_chunk())
    message = {"role": "assistant", "content": ""}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return _object(200, {"object": "chat.completion", "choices": [choice]})


def _named_events(*values: Mapping[str, object]) -> RawAnswer:
    """Events that carry their type as their name, as Responses and Messages have them."""
    return RawAnswer(status=200, headers=_SSE, pieces=tuple(map(render_named, values)), length=False)


def _response(status: str, text: str | None) -> dict[str, object]:
    error = None if text is None else {"code": "context_length_exceeded", "message": text}
    return {"id": "resp_1", "object": "response", "status": status, "error": error, "output": []}


def _failed(text: str, stream: bool) -> RawAnswer:
    failed = _response("failed", text)
    if not stream:
        return _object(200, failed)
    created: dict[str, object] = {"type": "response.created", "response": _response("in_progress", None)}
    return _named_events(created, {"type": "response.failed", "response": failed})


def _anthropic(text: str, kind: str = "invalid_request_error") -> dict[str, object]:
    return {"type": "error", "error": {"type": kind, "message": text}, "request_id": "req_1"}


def _message(stop: str | None) -> dict[str, object]:
    head: dict[str, object] = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    return head | {"stop_reason": stop, "usage": {"input_tokens": 1, "output_tokens": 1}}


def _stopped(stream: bool) -> RawAnswer:
    reason = "model_context_window_exceeded"
    if not stream:
        return _object(200, _message(reason))
    delta = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}}
    return _named_events(
        {"type": "message_start", "message": _message(None)}, delta, {"type": "message_stop"}
    )


@dataclass(frozen=True)
class Dress:
    """streamed: this shape exists in streams only; other requests get the toy's usual refusal."""

    render: Render
    dialect: Dialect = CHAT
    streamed: bool = False


_CHAT: Final = {
    "openai 400": Dress(lambda text, _: _object(400, _error(text, "context_length_exceeded"))),
    "code alone": Dress(lambda _, __: _object(400, _error("Bad request.", "context_length_exceeded"))),
    "anthropic 413": Dress(
        lambda text, _: _object(
            413, {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
        )
    ),
    "detail": Dress(lambda text, _: _object(422, {"detail": text})),
    "plain text": Dress(lambda text, _: RawAnswer(status=400, headers=_TEXT, pieces=(text.encode(),))),
    "no body 400": Dress(lambda _, __: RawAnswer(status=400, headers=(), pieces=())),
    "no body 413": Dress(lambda _, __: RawAnswer(status=413, headers=(), pieces=())),
    "200 with an error": Dress(lambda text, _: _object(200, _error(text, "context_length_exceeded"))),
    "finish reason": Dress(lambda _, stream: _finished(stream)),
    "first event": Dress(lambda text, _: _event(_error(text, "context_length_exceeded")), streamed=True),
    "after the role": Dress(
        lambda text, _: _event(_error(text, "context_length_exceeded"), _first_chunk()), streamed=True
    ),
}
_RESPONSES: Final = {
    "responses 400": Dress(lambda text, _: _object(400, _error(text, "context_length_exceeded")), RESPONSES),
    "responses failed": Dress(_failed, RESPONSES),
    "responses error event": Dress(
        lambda text, _: _named_events({"type": "error", "code": "context_length_exceeded", "message": text}),
        RESPONSES,
        streamed=True,
    ),
    "responses nested error event": Dress(
        lambda text, _: _named_events(
            {"type": "response.created", "response": _response("in_progress", None)},
            {"type": "error", **_error(text, "context_length_exceeded")},
        ),
        RESPONSES,
        streamed=True,
    ),
}
_MESSAGES: Final = {
    "messages 400": Dress(lambda text, _: _object(400, _anthropic(text)), MESSAGES),
    "messages 413": Dress(lambda text, _: _object(413, _anthropic(text, "request_too_large")), MESSAGES),
    "messages stop reason": Dress(lambda _, stream: _stopped(stream), MESSAGES),
    "messages of Bedrock": Dress(
        lambda _, __: _object(400, {"message": "Input is too long for requested model."}), MESSAGES
    ),
    "messages error event": Dress(lambda text, _: _named_events(_anthropic(text)), MESSAGES, streamed=True),
    "messages error after its start": Dress(
        lambda text, _: _named_events(
            {"type": "message_start", "message": _message(None)}, {"type": "ping"}, _anthropic(text)
        ),
        MESSAGES,
        streamed=True,
    ),
}
DRESSES: Final = _CHAT | _RESPONSES | _MESSAGES
# Phrases of a strict upstream about length, in all formats.
_WORDS: Final = ("maximum context length", "context window", "prompt is too long", "exceed context limit")


def is_for_length(seen: Seen) -> bool:
    return seen.refusal is not None and any(words in seen.refusal for words in _WORDS)


def dress_refusals(toy: ToyUpstream, name: str) -> None:
    """From now on the toy refuses requests that exceed its window in this shape."""
    dress = DRESSES[name]

    def intercept(seen: Seen) -> RawAnswer | None:
        is_streamed = bool(seen.request.get("stream"))
        if not is_for_length(seen) or (dress.streamed and not is_streamed):
            return None
        return dress.render(str(seen.refusal), is_streamed)

    toy.intercept = intercept


_EXHAUSTIVE = pytest.mark.exhaustive
WINDOW = 32_000
TURNS = 60
SHAPE = Shape(max_tokens=2_000)
SESSION = make_session(TURNS, 7, "many_users", 900)
# The first request of the session that does not fit, whatever the bias.
LATE = 50
SSE = (("Content-Type", "text/event-stream"),)
ERROR = b'{"error":{"message":"context_length_exceeded","code":"context_length_exceeded"}}'
EVENT = b"data: " + ERROR + b"\n\n"
# Every refusal, streamed and not. By default each one once, in turns.
WORN = [
    pytest.param(name, stream, marks=() if dress.streamed or stream == (place % 2 == 0) else _EXHAUSTIVE)
    for place, (name, dress) in enumerate(DRESSES.items())
    for stream in (True, False)
    if stream or not dress.streamed
]


# What costs nothing is compacted by size alone.
_FREE = 'models: [{match: "*", price: {input: 0, output: 0}}]\n'


def make_settings(toy: ToyUpstream, more: str = "") -> str:
    """Settings without the size of the window."""
    more += "" if "models:" in more else _FREE
    return f'store: "memory:"\nupstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n{more}'


# From well below the window to well above it.
NEAR_THE_WINDOW = Pace(first=18, last=40)


async def play(dress: str, *, stream: bool, bias: float, pace: Pace = NEAR_THE_WINDOW) -> Run:
    dialect = DRESSES[dress].dialect
    toy = ToyUpstream(window=WINDOW, bias=bias)
    dress_refusals(toy, dress)
    shape = Shape(dialect=dialect, max_tokens=2_000, stream=stream)
    async with toy, serve(make_settings(toy)) as gateway:
        return await run_session(SESSION, gateway.base_url, toy, shape, pace)


async def ask_late(toy: ToyUpstream, settings: str, shape: Shape = SHAPE) -> Answer:
    """Sends one request that is too long, of a new conversation."""
    dialect = shape.dialect
    async with (
        serve(settings) as gateway,
        aiohttp.ClientSession(headers=dialect.headers("sk-toy")) as client,
    ):
        return await ask(client, f"{gateway.base_url}{dialect.path}", SESSION.request(LATE, shape))


def refused_by(toy: ToyUpstream, answer: RawAnswer) -> None:
    """The toy answers every request but summary calls with this."""
    toy.intercept = lambda seen: answer if seen.is_chat and not seen.is_summary else None


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dress", "stream"), WORN)
async def test_an_unknown_window_costs_one_retry_and_no_request(dress: str, stream: bool) -> None:
    run = await play(dress, stream=stream, bias=1.3)
    assert run.failed == []
    refused = [position for position, seen in enumerate(run.seen) if seen.refusal is not None]
    assert len(refused) == 1
    # The first surprise: the summary, then the retry, within the same client request; none after it.
    assert [seen.is_summary for seen in run.seen[refused[0] :]][:3] == [False, True, False]
    assert run.seen[refused[0] + 2].prompt_tokens < run.seen[refused[0]].prompt_tokens
    assert len(run.outgoing) == len(run.answers) + 1
    assert len(run.summaries) <= 8


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bias", [0.7, 1.0, 1.6])
async def test_with_any_tokenizer_the_whole_session_costs_one_retry(bias: float) -> None:
    run = await play("code alone", stream=True, bias=bias, pace=Pace())
    assert run.failed == []
    assert len(run.refusals) <= 1


async def test_a_window_too_small_to_be_guessed_costs_no_request_either() -> None:
    toy = ToyUpstream(window=3_500)
    dress_refusals(toy, "code alone")
    async with toy, serve(make_settings(toy)) as gateway:
        run = await run_session(SESSION, gateway.base_url, toy, Shape(max_tokens=500), Pace(last=3))
    assert run.refusals and run.failed == []


async def test_a_request_that_is_slightly_too_long_is_made_smaller_under_any_policy() -> None:
    toy = ToyUpstream(window=WINDOW)
    more = "policies:\n  default: {preset: opencode}\n"
    async with toy, serve(make_settings(toy, more)) as gateway:
        run = await run_session(SESSION, gateway.base_url, toy, SHAPE, Pace(first=30, last=36))
    assert run.refusals and run.failed == []


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_without_a_summariser_the_digest_takes_the_place(stream: bool, dialect: Dialect) -> None:
    toy = ToyUpstream(window=WINDOW)
    toy.summary_failures = [RawAnswer(status=500, pieces=(b"{}",))] * 9
    async with toy:
        shape = Shape(dialect=dialect, max_tokens=2_000, stream=stream)
        answer = await ask_late(toy, make_settings(toy), shape)
    assert answer.is_whole
    assert answer.header("x-gateway-plan") == "digest"
    assert len(toy.summaries) == 2
    assert [seen.refusal is None for seen in toy.chats] == [False, True]
    assert b"made without a model" in toy.chats[-1].body


async def test_a_digest_is_sticky_and_a_later_summary_is_made_of_the_originals() -> None:
    toy = ToyUpstream(window=WINDOW)
    toy.summary_failures = [RawAnswer(status=500, pieces=(b"{}",))] * 2
    async with toy, serve(make_settings(toy)) as gateway:
        run = await run_session(SESSION, gateway.base_url, toy, SHAPE, Pace(first=37))
    assert run.failed == []
    plans = [answer.header("x-gateway-plan") for answer in run.answers]
    assert plans[:3] == ["digest"] * 3
    assert plans[-1] == "pivot"
    said = [fact for fact in SESSION.facts if fact.turn < TURNS - 1]
    assert run.facts_lost(find_tokens(said, "user", "assistant")) == []


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
async def test_if_no_retry_helps_the_client_gets_the_upstreams_own_error(dialect: Dialect) -> None:
    toy = ToyUpstream(window=WINDOW)
    error = b'{"error": {"message":"prompt is too long: 99999 tokens > 2000 maximum", "x": 1.50}}'
    headers = (("Content-Type", "application/json"), ("X-Id", "7"))
    refused_by(toy, RawAnswer(status=400, headers=headers, pieces=(error,)))
    async with toy:
        answer = await ask_late(toy, make_settings(toy), replace(SHAPE, dialect=dialect))
    assert (answer.status, answer.body, answer.header("x-id")) == (400, error, "7")
    assert answer.header("x-gateway-plan") and answer.header("x-gateway-tokens")
    assert 2 <= len(toy.chats) <= 3
    sizes = [len(seen.body) for seen in toy.chats]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
async def test_what_is_too_long_with_its_summary_is_sent_once_more_with_a_digest(dialect: Dialect) -> None:
    toy = ToyUpstream(window=WINDOW)
    refused = RawAnswer(status=400, pieces=(ERROR,))
    toy.intercept = lambda seen: refused if not seen.is_summary and len(toy.chats) <= 2 else None
    async with toy:
        answer = await ask_late(toy, make_settings(toy), replace(SHAPE, dialect=dialect, max_tokens=500))
    sizes = [len(seen.body) for seen in toy.chats]
    assert answer.is_whole and len(sizes) == 3
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
    assert (answer.header("x-gateway-plan"), len(toy.summaries) > 0) == ("digest", True)


NOT_FOR_LENGTH = {
    "rate limit": RawAnswer(status=429, pieces=(b'{"error": {"message": "Too many tokens per min"}}',)),
    "bad request": RawAnswer(status=400, pieces=(b'{"error": {"message": "invalid value: tokens"}}',)),
    "server error": RawAnswer(status=500, pieces=(b'{"error": {"message": "no"}}',)),
    "output": RawAnswer(status=400, pieces=(b'{"error": {"message": "max_tokens is too large: 2000"}}',)),
}


@pytest.mark.parametrize("error", NOT_FOR_LENGTH.values(), ids=NOT_FOR_LENGTH)
async def test_an_error_that_is_not_about_length_is_passed_on(error: RawAnswer) -> None:
    toy = ToyUpstream(window=WINDOW)
    refused_by(toy, error)
    async with toy:
        answer = await ask_late(toy, make_settings(toy))
    assert (answer.status, answer.body) == (error.status, error.body)
    assert len(toy.requests) == 1


async def test_an_empty_400_far_below_the_thresholds_is_not_taken_for_an_overflow() -> None:
    toy = ToyUpstream(window=WINDOW)
    refused_by(toy, RawAnswer(status=400))
    async with toy, serve(house.make_settings(toy)) as gateway:
        run = await run_session(SESSION, gateway.base_url, toy, SHAPE, Pace(last=1))
    assert run.statuses == [400]
    assert len(toy.requests) == 1


async def test_a_refusal_that_quotes_the_whole_prompt_is_one() -> None:
    toy = ToyUpstream(window=WINDOW)
    toy.intercept = lambda seen: quote(seen) if seen.refusal is not None else None
    async with toy:
        answer = await ask_late(toy, make_settings(toy))
    assert answer.is_whole


async def test_a_learned_window_is_forgotten_when_larger_requests_succeed() -> None:
    toy = ToyUpstream(window=128_000)
    error = b'{"error": {"message": "This model\'s maximum context length is 300 tokens."}}'
    toy.intercept = lambda seen: RawAnswer(status=400, pieces=(error,)) if len(toy.chats) == 1 else None
    async with toy, serve(make_settings(toy)) as gateway:
        await run_session(SESSION, gateway.base_url, toy, SHAPE, Pace(first=20, last=21))
        run = await run_session(make_session(4, 5, "one_user", 300), gateway.base_url, toy, SHAPE)
    assert [answer.header("x-gateway-plan") for answer in run.answers] == ["passthrough"] * 4


async def test_refusals_of_every_retry_without_a_number_teach_no_tiny_window() -> None:
    toy = ToyUpstream(window=128_000)
    refused_by(toy, RawAnswer(status=400))
    other = make_session(30, 5, "one_user", 600)
    async with toy, serve(make_settings(toy)) as gateway:
        refused = await run_session(SESSION, gateway.base_url, toy, SHAPE, Pace(first=LATE, last=LATE + 1))
        toy.intercept = lambda _: None
        run = await run_session(other, gateway.base_url, toy, SHAPE)
    assert refused.statuses == [400]
    assert {answer.header("x-gateway-plan") for answer in run.answers} == {"passthrough"}


def quote(seen: Seen) -> RawAnswer:
    error = {"message": seen.refusal, "input": seen.body.decode()}
    return RawAnswer(status=400, pieces=(json.dumps({"error": error}).encode(),))


ENDLESS: tuple[Delivery, ...] = (Delivery(ending="close"), Delivery(ending="abort"), Delivery(ending="hang"))


@pytest.mark.parametrize("delivery", ENDLESS, ids=[delivery.ending for delivery in ENDLESS])
async def test_a_stream_without_an_end_behind_its_refusal_is_tried_again(delivery: Delivery) -> None:
    toy = ToyUpstream(window=WINDOW)
    refusal = RawAnswer(headers=SSE, pieces=(EVENT,), length=False, delivery=delivery)
    toy.intercept = lambda seen: refusal if seen.refusal is not None else None
    async with toy:
        answer = await ask_late(toy, make_settings(toy), Shape(max_tokens=2_000, stream=True))
    assert answer.is_whole


async def test_a_refusal_shorter_than_it_promised_still_ends() -> None:
    toy = ToyUpstream(window=WINDOW)
    cut = Delivery(stop_after_bytes=len(EVENT), ending="hang")
    refused_by(toy, RawAnswer(headers=SSE, pieces=(EVENT, b": and more\n\n"), delivery=cut))
    async with toy:
        answer = await ask_late(toy, make_settings(toy), Shape(max_tokens=2_000, stream=True))
    assert (answer.status, answer.body, answer.broken) == (200, EVENT, None)


async def test_without_auto_there_is_no_recovery() -> None:
    toy = ToyUpstream(window=WINDOW)
    more = "policies:\n  default: {compaction: {auto: false}}\n"
    async with toy:
        answer = await ask_late(toy, make_settings(toy, more))
    assert answer.status == 400
    assert len(toy.requests) == 1


async def test_a_window_smaller_than_configured_is_found_out() -> None:
    toy = ToyUpstream(window=WINDOW)
    models = 'models:\n  - {match: "toy-*", context: 128000}\n'
    async with toy, serve(make_settings(toy, models)) as gateway:
        run = await run_session(SESSION, gateway.base_url, toy, SHAPE)
    assert run.failed == []
    # The configured window stays, so each time the window fills up there is a refusal.
    assert len(run.refusals) <= len(run.summaries)


async def test_the_client_is_kept_alive_while_the_retry_is_prepared() -> None:
    toy = ToyUpstream(window=WINDOW)
    toy.summary_delivery = Delivery(before_headers_seconds=1.0)
    more = "keepalive: {after_seconds: 0.1}\n"
    async with toy:
        answer = await ask_late(toy, make_settings(toy, more), Shape(max_tokens=2_000, stream=True))
    assert answer.is_whole
    assert answer.body.count(b": keep-alive") >= 3
    assert b"error" not in answer.body


GZIP = (("Content-Type", "application/json"), ("Content-Encoding", "gzip"))
FINAL = {
    "plain": RawAnswer(status=400, pieces=(ERROR,)),
    "compressed": RawAnswer(status=400, headers=GZIP, pieces=(gzip.compress(ERROR),)),
    "event": RawAnswer(headers=SSE, pieces=(EVENT,), length=False),
}


@pytest.mark.parametrize("refusal", FINAL.values(), ids=FINAL)
async def test_after_a_keep_alive_a_final_refusal_is_an_error_event(refusal: RawAnswer) -> None:
    toy = ToyUpstream(window=WINDOW)
    toy.summary_delivery = Delivery(before_headers_seconds=1.0)
    refused_by(toy, refusal)
    more = "keepalive: {after_seconds: 0.1}\n"
    async with toy:
        answer = await ask_late(toy, make_settings(toy, more), Shape(max_tokens=2_000, stream=True))
    assert answer.status == 200 and answer.broken is not None
    assert EVENT in answer.body


def test_the_late_request_is_late() -> None:
    assert ToyUpstream(window=WINDOW).counter.prompt(dict(SESSION.envelope(LATE, SHAPE))) > 1.2 * WINDOW


async def test_a_reply_that_fills_the_window_shows_how_large_it_is() -> None:
    """Too late to try again: the client has the beginning of the reply. The next request knows."""
    toy = ToyUpstream(window=1_000_000)
    ended = Reply(text="We were", finish_reason="model_context_window_exceeded")
    session = replace(SESSION, name="full")
    async with toy, serve(make_settings(toy)) as gateway:
        before = await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=30, last=31))
        url = f"{gateway.base_url}/chat/completions"
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer sk-toy"}) as client:
            toy.reply = lambda _: ended
            await ask(client, url, session.request(31, SHAPE))
            toy.reply = lambda _: Reply()
            await ask(client, url, session.request(32, SHAPE))
    assert before.failed == []
    full, following = toy.chats[-2:]
    assert following.prompt_tokens < 0.8 * full.prompt_tokens
    assert len(toy.summaries) == 1


async def test_half_an_emoji_in_the_history_does_not_end_the_session() -> None:
    """JavaScript writes half of a surrogate pair when it cuts a text inside an emoji. Our JSON library
    rejects it.
    """
    toy = ToyUpstream(window=WINDOW)
    cut = {"role": "user", "content": "It printed \ud83d"}
    session = replace(SESSION, opening=(*SESSION.opening, cut))
    async with toy, serve(house.make_settings(toy)) as gateway:
        run = await run_session(session, gateway.base_url, toy, replace(SHAPE, ascii=True))
    assert run.failed == [] and run.refusals == []
    assert run.summaries
    assert b"It printed \\ud83d" in run.outgoing[-1].body
