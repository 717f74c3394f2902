"""Which turn is made of a request, and which branch of its conversation it belongs to."""

import json
from typing import Any

from gateway.conversations.turn import Turn
from gateway.core.economy.rates import Rates
from gateway.core.sizing.usage import Usage
from gateway.downstream.request import ReceivedBody
from gateway.wire.sse import SseEvent
from tests.builders.chat import make_pivot, make_plan
from tests.builders.pipeline import SETTINGS, Pipeline, running_pipeline

_QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "Fix the parser."}]
_TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
_RESPONSES = "/v1/responses"


def render(messages: list[dict[str, Any]], **fields: Any) -> bytes:
    return json.dumps({"model": "toy", "messages": messages, "tools": _TOOLS} | fields).encode()


def go_on(messages: list[dict[str, Any]], answer: str = "Done.", wish: str = "More.") -> list[dict[str, Any]]:
    return [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": wish}]


async def build(pipeline: Pipeline, messages: list[dict[str, Any]], **fields: Any) -> Turn:
    return await pipeline.build(render(messages, **fields))


async def answer(pipeline: Pipeline, messages: list[dict[str, Any]], **fields: Any) -> Turn:
    """A turn whose response is recorded."""
    turn = await build(pipeline, messages, **fields)
    pipeline.compactor.record_response(turn, make_plan(), Usage(50, 5))
    return turn


async def test_a_body_that_is_not_of_the_format_makes_no_turn() -> None:
    async with running_pipeline() as pipeline:
        route = pipeline.admit()
        for body in (b"no JSON", b"{}", b'{"messages":"text"}', b'{"messages":[{"content":"no role"}]}'):
            received = ReceivedBody(body, body)
            assert await pipeline.proxy.turns.build(route, received) is None
            assert await pipeline.proxy.turns.build_for_count(route, received) is None


async def test_a_history_with_replies_that_nothing_is_known_of_is_unrecognized() -> None:
    async with running_pipeline() as pipeline:
        assert not (await answer(pipeline, _QUESTION)).is_unrecognized
        assert not (await answer(pipeline, go_on(_QUESTION))).is_unrecognized
        changed = go_on(go_on(_QUESTION, "Changed."), "Again.")
        assert (await answer(pipeline, changed)).is_unrecognized
        assert not (await build(pipeline, go_on(changed))).is_unrecognized


async def test_a_history_with_a_pivot_is_recognized_although_its_newest_messages_changed() -> None:
    """aider takes the files out of a user's message once it is answered."""
    told = go_on(go_on(_QUESTION), wish="Even more, with a file.")
    async with running_pipeline() as pipeline:
        turn = await answer(pipeline, told)
        changed = go_on([*told[:-1], {"role": "user", "content": "Even more."}])
        assert (await build(pipeline, changed)).is_unrecognized
        await pipeline.state.pivots.save(make_pivot(turn.received.conversation, 3))
        assert not (await build(pipeline, changed)).is_unrecognized


async def test_a_body_that_names_an_unknown_response_makes_no_turn() -> None:
    body = b'{"model":"toy","previous_response_id":"resp_1","input":"on"}'
    async with running_pipeline() as pipeline:
        route = pipeline.admit(_RESPONSES)
        assert await pipeline.proxy.turns.build(route, ReceivedBody(body, body)) is None


async def test_a_named_response_is_written_out_and_the_raw_body_kept() -> None:
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": "Done."}
    response = {"object": "response", "id": "resp_1", "status": "completed", "output": [said]}
    named = b'{"model":"toy","previous_response_id":"resp_1","input":"More."}'
    async with running_pipeline() as pipeline:
        first = await pipeline.build(b'{"model":"toy","input":"Fix it."}', _RESPONSES)
        assert first.on_event is not None
        first.on_event(SseEvent("", json.dumps(response).encode()))
        turn = await pipeline.build(named, _RESPONSES)
    assert turn.raw_body is named
    written_out = json.loads(turn.received.body.data)
    assert [item["content"] for item in written_out["input"]] == ["Fix it.", "Done.", "More."]
    assert "previous_response_id" not in written_out


async def test_formats_that_name_nothing_are_told_no_events() -> None:
    async with running_pipeline() as pipeline:
        assert (await build(pipeline, _QUESTION)).on_event is None


async def test_a_conversation_keeps_its_id() -> None:
    async with running_pipeline() as pipeline:
        first = await answer(pipeline, _QUESTION)
        again = await build(pipeline, _QUESTION)
        second = await build(pipeline, go_on(_QUESTION))
    assert first.head is None and first.parent_id is None
    assert again.conversation_id == second.conversation_id == first.conversation_id
    assert second.head is not None and second.own_head is second.head


async def test_the_same_opening_gets_the_same_id_in_another_process() -> None:
    ids = set()
    for messages in (_QUESTION, go_on(_QUESTION)):
        async with running_pipeline() as pipeline:
            ids.add((await build(pipeline, messages)).conversation_id)
    assert len(ids) == 1


async def test_the_second_request_that_goes_on_from_one_head_is_a_branch() -> None:
    async with running_pipeline() as pipeline:
        first = await answer(pipeline, _QUESTION)
        second = await build(pipeline, go_on(_QUESTION, wish="More."))
        third = await build(pipeline, go_on(_QUESTION, wish="Something else."))
    assert second.conversation_id == first.conversation_id
    assert third.conversation_id != first.conversation_id and third.parent_id == first.conversation_id


async def test_a_call_with_other_tools_is_a_branch_and_leaves_the_place_to_the_next_request() -> None:
    async with running_pipeline() as pipeline:
        first = await answer(pipeline, _QUESTION)
        side = await build(pipeline, go_on(_QUESTION, wish="Title?"), tools=[])
        next_turn = await build(pipeline, go_on(_QUESTION))
    assert side.conversation_id != first.conversation_id and side.parent_id == first.conversation_id
    assert next_turn.conversation_id == first.conversation_id


async def test_a_side_call_over_the_very_same_messages_has_no_parent() -> None:
    async with running_pipeline() as pipeline:
        first = await answer(pipeline, _QUESTION)
        side = await build(pipeline, _QUESTION, tools=[])
    assert side.conversation_id != first.conversation_id and side.parent_id is None


async def test_the_client_s_own_summary_is_a_side_call() -> None:
    wish = "Provide a detailed prompt for continuing our conversation above."
    async with running_pipeline() as pipeline:
        first = await answer(pipeline, _QUESTION)
        summary = await build(pipeline, go_on(_QUESTION, wish=wish))
    assert summary.purpose == "summary"
    assert summary.conversation_id != first.conversation_id and summary.parent_id == first.conversation_id


async def test_a_command_leaves_the_place_to_the_next_request() -> None:
    async with running_pipeline(SETTINGS.replace("estimator", "commands: true, estimator")) as pipeline:
        first = await answer(pipeline, _QUESTION)
        command = await build(pipeline, go_on(_QUESTION, wish="/compact keep the names"))
        next_turn = await build(pipeline, go_on(_QUESTION))
    assert command.command == "keep the names"
    assert command.conversation_id == next_turn.conversation_id == first.conversation_id


async def test_a_command_is_a_message_where_the_policy_has_none() -> None:
    async with running_pipeline() as pipeline:
        assert (await build(pipeline, go_on(_QUESTION, wish="/compact"))).command is None


async def test_a_count_takes_no_place_in_its_conversation() -> None:
    body = render(go_on(_QUESTION, wish="Perhaps"))
    async with running_pipeline() as pipeline:
        first = await answer(pipeline, _QUESTION)
        counted = await pipeline.proxy.turns.build_for_count(pipeline.admit(), ReceivedBody(body, body))
        second = await build(pipeline, go_on(_QUESTION))
    assert counted is not None and counted.conversation_id == first.conversation_id
    assert second.conversation_id == first.conversation_id


async def test_a_count_of_an_unknown_conversation_has_no_id() -> None:
    body = render(_QUESTION)
    async with running_pipeline() as pipeline:
        counted = await pipeline.proxy.turns.build_for_count(pipeline.admit(), ReceivedBody(body, body))
    assert counted is not None and (counted.conversation_id, counted.head) == ("", None)


async def test_usage_counts_only_for_the_same_tools() -> None:
    async with running_pipeline() as pipeline:
        await answer(pipeline, _QUESTION)
        turn = await build(pipeline, go_on(_QUESTION), tools=[])
    assert turn.head is not None and turn.own_head is None


async def test_thresholds_come_from_the_model_s_limits() -> None:
    async with running_pipeline() as pipeline:
        known = await build(pipeline, _QUESTION)
        unknown = await build(pipeline, _QUESTION, model="other")
    assert known.limits.context == 4_000 and known.thresholds is not None
    assert known.thresholds.hard < 4_000
    assert unknown.thresholds is None


async def test_equal_requests_share_their_thresholds() -> None:
    async with running_pipeline() as pipeline:
        first, second = await build(pipeline, _QUESTION), await build(pipeline, go_on(_QUESTION))
        longer = await build(pipeline, _QUESTION, max_tokens=900)
    assert first.thresholds is second.thresholds
    assert first.thresholds is not longer.thresholds


async def test_the_same_conversation_with_and_without_the_long_window_has_limits_of_its_own() -> None:
    body = render(_QUESTION, model="claude-sonnet-4-5")
    flag = [("anthropic-beta", "context-1m-2025-08-07")]
    contexts = []
    async with running_pipeline() as pipeline:
        for more in ([], flag, []):
            turn = await pipeline.proxy.turns.build(pipeline.admit(more=more), ReceivedBody(body, body))
            assert turn is not None
            contexts.append(turn.limits.context)
    assert contexts == [200_000, 1_000_000, 200_000]


async def test_rates_come_from_the_price_or_from_the_cache_that_was_seen() -> None:
    rule = "models: [{match: toy, price: {input: 2, cached: 0.5, output: 8}}, "
    priced = SETTINGS.replace("models: [", rule)
    async with running_pipeline(priced) as pipeline:
        assert (await build(pipeline, _QUESTION)).rates == Rates(1.0, 0.25, 4.0)
    async with running_pipeline() as pipeline:
        turn = await build(pipeline, _QUESTION)
        assert not turn.rates.caches
        pipeline.compactor.record_response(turn, make_plan(), Usage(50, 5, cached_tokens=40))
        assert (await build(pipeline, go_on(_QUESTION))).rates.caches
        # Nothing is known of the cache of another model.
        assert not (await build(pipeline, go_on(_QUESTION), model="other")).rates.caches
