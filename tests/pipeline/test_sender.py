"""What is sent upstream, and what the response teaches."""

import json
from typing import Any

from gateway.conversations.turn import Turn
from gateway.core.refusal.overflow import Overflow
from gateway.downstream.request import ReceivedBody
from gateway.outgoing.call_maker import NOTHING_ADDED
from tests.builders.chat import make_pivot, make_plan
from tests.builders.pipeline import SETTINGS, Pipeline, Reply, make_refusal, responding, running_pipeline

_MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Fix it."},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "More."},
]


def render(**fields: Any) -> bytes:
    return json.dumps({"model": "toy", "messages": _MESSAGES} | fields).encode()


async def send(pipeline: Pipeline, turn: Turn, **fields: Any) -> bytes:
    """What the client gets."""
    async with responding() as (client, line):
        assert await pipeline.proxy.sender.send(turn, make_plan(**fields), client) is None
        return line.written


async def test_an_unchanged_body_is_sent_as_it_came() -> None:
    async with running_pipeline() as pipeline:
        route, body = pipeline.admit(), render()
        turn = await pipeline.proxy.turns.build(route, ReceivedBody(b"packed", body))
        assert turn is not None
        await send(pipeline, turn)
        call = pipeline.relay.exchanges[0].call
    assert call.body == b"packed" and call.head is route.head


async def test_a_changed_body_is_sent_without_content_encoding() -> None:
    async with running_pipeline() as pipeline:
        route = pipeline.admit(more=[("Content-Encoding", "gzip")])
        turn = await pipeline.proxy.turns.build(route, ReceivedBody(b"packed", render()))
        assert turn is not None
        await send(pipeline, turn, pivot=make_pivot(turn.received.conversation, 2))
        call = pipeline.relay.exchanges[0].call
    assert isinstance(call.body, bytes) and len(json.loads(call.body)["messages"]) < 5
    assert "content-encoding" in route.head.headers and "content-encoding" not in call.head.headers


async def test_usage_is_asked_for_in_a_stream_whose_client_did_not() -> None:
    async with running_pipeline() as pipeline:
        for body in (
            render(stream=True),
            render(),
            render(stream=True, stream_options={"include_usage": True}),
        ):
            await send(pipeline, await pipeline.build(body))
        asked, plain, client_asked = pipeline.relay.exchanges
        assert asked.make_with is not None
        assert (await asked.make_with(NOTHING_ADDED)).body == render(stream=True)
    assert isinstance(asked.call.body, bytes)
    assert json.loads(asked.call.body)["stream_options"] == {"include_usage": True}
    assert asked.call.head.headers["Accept-Encoding"] == "identity"
    assert asked.additions == {"usage"}
    assert not plain.additions and not client_asked.additions


async def test_a_model_that_refuses_the_option_is_not_asked_again() -> None:
    async with running_pipeline() as pipeline:
        turn = await pipeline.build(render(stream=True))
        pipeline.relay.script = [Reply(refused=frozenset({"usage"}))]
        for _ in range(2):
            await send(pipeline, turn)
        first, second = pipeline.relay.exchanges
    assert first.additions and not second.additions


async def test_a_refusal_is_returned_and_given_back_as_it_came() -> None:
    refusal = make_refusal(Overflow(context=3_000), b'{"error":{"message":"too long"}}')
    async with running_pipeline() as pipeline, responding() as (client, line):
        turn, plan = await pipeline.build(render()), make_plan()
        pipeline.relay.script = [refusal]
        assert await pipeline.proxy.sender.send(turn, plan, client) is refusal
        assert line.written == b""
        await pipeline.proxy.sender.give_back(turn, plan, refusal, client)
        assert line.written.startswith(b"HTTP/1.1 400") and line.written.endswith(refusal.body)
    assert pipeline.registry.find(turn.conversation_id) is None


async def test_good_responses_are_held_back_only_where_the_request_may_be_too_large() -> None:
    never = SETTINGS.replace("estimator", "compaction: {auto: false}, estimator")
    probes = []
    for text, model, sent in (
        (SETTINGS, "toy", 10),
        (SETTINGS, "toy", 3_000),
        (SETTINGS, "other", 10),
        (never, "toy", 9),
    ):
        async with running_pipeline(text) as pipeline, responding() as (client, _):
            plan = make_plan()
            plan.sent = sent
            await pipeline.proxy.sender.send(await pipeline.build(render(model=model)), plan, client)
            probes.append(pipeline.relay.exchanges[0].probe)
    assert probes == ["errors", "start", "start", "none"]
