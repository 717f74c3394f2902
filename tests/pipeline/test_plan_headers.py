"""What the headers of a response say, as the client gets them."""

from msgspec import structs

from gateway.core.sizing.usage import Usage
from gateway.tenants import Tenant
from tests.builders.chat import make_batch, make_pivot, make_plan
from tests.builders.pipeline import SETTINGS, responding, running_pipeline
from tests.pipeline.test_sender import render, send

_ECONOMICS = "x-gateway-economics"


async def test_headers_of_the_response_tell_the_plan() -> None:
    async with running_pipeline() as pipeline:
        turn = await pipeline.build(render())
        conversation = turn.received.conversation
        pivot, batch = make_pivot(conversation, 2), make_batch(conversation, [])
        plans = {
            "passthrough": make_plan(),
            "pruned": make_plan(None, [batch]),
            "pivot": make_plan(pivot),
            "pivot+pruned": make_plan(pivot, [batch]),
            "digest": make_plan(make_pivot(conversation, 2, is_digest=True)),
        }
        for plan in plans.values():
            async with responding() as (client, _):
                await pipeline.proxy.sender.send(turn, plan, client)
        headers = [exchange.headers for exchange in pipeline.relay.exchanges]
    assert [each["x-gateway-plan"] for each in headers] == list(plans)
    assert {each["x-gateway-conversation"] for each in headers} == {turn.conversation_id}


async def test_no_headers_are_added_where_the_settings_say_so() -> None:
    async with running_pipeline(SETTINGS + "response_headers: false\n") as pipeline:
        await send(pipeline, await pipeline.build(render()))
        assert pipeline.relay.exchanges[0].headers == {}


async def test_what_a_conversation_cost_is_told_to_those_who_ask() -> None:
    async with running_pipeline() as pipeline:
        turn = await pipeline.build(render(), more=[(_ECONOMICS, "1")])
        await send(pipeline, turn)
        pipeline.activity.note_request(turn, make_plan(), Usage(500, 20, 300))
        await send(pipeline, turn)
        await send(pipeline, await pipeline.build(render()))
        # The same conversation id of another tenant.
        await send(pipeline, structs.replace(turn, tenant=Tenant("other", None, "default")))
        first, second, unasked, strange = pipeline.relay.exchanges
    assert _ECONOMICS not in first.call.head.headers
    assert first.headers[_ECONOMICS] == strange.headers[_ECONOMICS] == "requests=0"
    assert "prompt=500, cached=300, " in second.headers[_ECONOMICS]
    assert _ECONOMICS not in unasked.headers


async def test_nothing_is_told_where_the_settings_switch_headers_off() -> None:
    async with running_pipeline(SETTINGS + "response_headers: false\n") as pipeline:
        await send(pipeline, await pipeline.build(render(), more=[(_ECONOMICS, "1")]))
        assert pipeline.relay.exchanges[0].headers == {}
