"""What conversations did is there again after a restart, through a whole gateway."""

import pytest
from msgspec.structs import asdict

from gateway.activity.record import ConversationActivity
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import run_session, wait_until
from tests.toy.upstream import ToyUpstream

_PRICE = "{input: 2, cached: 1, output: 8}"


def find(gateway: RunningGateway, conversation: str) -> ConversationActivity | None:
    return gateway.parts.foundation.activity.find(conversation)


async def test_a_session_that_was_compacted_is_known_after_a_restart(store_url: str) -> None:
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=store_url, price=_PRICE)
        async with running_gateway(settings) as gateway:
            run = await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
            await gateway.settle()
            before = find(gateway, run.conversation)
        assert run.failed == [] and before is not None
        async with running_gateway(settings) as gateway:
            await wait_until(lambda: find(gateway, run.conversation) is not None)
            after = find(gateway, run.conversation)
    assert after is not None and after.summaries == before.summaries
    # Sums of money are added up in another order where processes share the store.
    assert asdict(after.totals) == pytest.approx(asdict(before.totals))
    assert after.series.list_points() == before.series.list_points()
    totals, points = after.totals, after.series.list_points()
    assert totals.requests == len(points) == len(run.answers)
    assert [point.plan for point in points] == [answer.header("x-gateway-plan") for answer in run.answers]
    # The toy counts the prompt and the reply of each request, and those of the summaries.
    assert totals.compactions == len(after.summaries) > 0 and totals.cache_breaks > 0
    assert totals.spent_usd is not None and totals.summary_usd is not None
    assert all(note.usd is not None and note.prompt_tokens for note in after.summaries)
    assert totals.saved_tokens > 0 and totals.saved_usd is not None
    changes = [point.change for point in points if point.change is not None]
    assert set(changes) <= {"compaction", "pruning"} and len(changes) == totals.cache_breaks
