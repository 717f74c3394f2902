"""What is recorded of a response, and of which ones."""

import pytest

from gateway.core.sizing.usage import Usage
from tests.builders.pipeline import Reply, running_pipeline
from tests.pipeline.test_sender import render, send


async def test_a_response_is_recorded_with_its_usage() -> None:
    async with running_pipeline() as pipeline:
        turn = await pipeline.build(render())
        pipeline.relay.script = [Reply(usage=Usage(50, 5))]
        written = await send(pipeline, turn)
        found = pipeline.registry.find(turn.conversation_id)
        head = pipeline.state.heads.find(turn.received.conversation, turn.scope)
        activity = pipeline.activity.find(turn.conversation_id)
        newest = pipeline.registry.find_newest(turn.conversation_id)
    assert written.startswith(b"HTTP/1.1 200") and written.endswith(b"{}")
    assert found is not None and found.head is head
    assert newest is not None and newest.plan.name == "passthrough"
    assert activity is not None
    assert (activity.totals.requests, activity.totals.prompt_tokens) == (1, 50)
    assert head is not None and (head.prompt_tokens, head.output_tokens) == (50, 5)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500),
        Reply(status=401, usage=Usage(50, 5)),
        Reply(has_error=True, usage=Usage(50, 5)),
        Reply(is_complete=False),
    ],
    ids=["500", "401", "error in the stream", "broken off"],
)
async def test_a_failed_response_is_not_recorded(reply: Reply) -> None:
    async with running_pipeline() as pipeline:
        turn = await pipeline.build(render())
        pipeline.relay.script = [reply]
        await send(pipeline, turn)
        assert pipeline.registry.find(turn.conversation_id) is None
        assert pipeline.state.heads.find(turn.received.conversation, turn.scope) is None
        assert pipeline.activity.find(turn.conversation_id) is None


async def test_a_stream_that_broke_off_after_its_usage_is_recorded() -> None:
    async with running_pipeline() as pipeline:
        turn = await pipeline.build(render())
        pipeline.relay.script = [Reply(is_complete=False, usage=Usage(50, 5))]
        await send(pipeline, turn)
        assert pipeline.registry.find(turn.conversation_id) is not None


async def test_a_reply_that_filled_the_window_teaches_its_size() -> None:
    async with running_pipeline() as pipeline:
        turn = await pipeline.build(render(model="unknown"))
        reply = Reply(usage=Usage(9_000, 1_000), finish_reason="model_context_window_exceeded")
        pipeline.relay.script = [reply]
        await send(pipeline, turn)
        again = await pipeline.build(render(model="unknown"))
    assert turn.limits.context is None and again.limits.context == 10_000
