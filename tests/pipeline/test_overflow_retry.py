"""What becomes of a request that upstream calls too large."""

import json
from collections.abc import Sequence
from typing import Any

from gateway.core.refusal.overflow import Overflow
from gateway.pipeline.planning_step import WaitBudget
from gateway.reporting.events import Overflowed
from gateway.upstream.refusal_probe import HeldResponse
from tests.builders.pipeline import SETTINGS, Pipeline, Reply, make_refusal, responding, running_pipeline

# By our count the request fits easily.
_WIDE = SETTINGS.replace("context: 4000", "context: 100000")
_TOO_LONG = make_refusal(Overflow(context=3_000, prompt_tokens=9_000), b'{"error":{"message":"first"}}')


def make_talk(turns: int) -> bytes:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix the parser."}]
    for number in range(turns):
        messages += [
            {"role": "assistant", "content": f"{number} " + "said " * 80},
            {"role": "user", "content": f"{number} " + "more " * 80},
        ]
    return json.dumps({"model": "toy", "messages": messages}).encode()


async def retry(pipeline: Pipeline, body: bytes, script: Sequence[Reply | HeldResponse]) -> bytes:
    """What the client gets after a first refusal. script: what upstream says to what is sent then."""
    proxy = pipeline.proxy
    async with responding() as (client, line):
        turn = await pipeline.build(body)
        budget = WaitBudget(turn.policy.summary)
        plan = await proxy.planning.plan(turn, budget, client)
        pipeline.relay.script = list(script)
        await proxy.overflow_retry.run(turn, plan, _TOO_LONG, budget, client)
        return line.written


async def test_a_refused_request_is_sent_again_smaller() -> None:
    body = make_talk(40)
    async with running_pipeline(_WIDE) as pipeline:
        written = await retry(pipeline, body, [Reply(body=b'{"ok":1}')])
        (sent,) = pipeline.sent
        probe = pipeline.relay.exchanges[0].probe
        metrics = pipeline.proxy.metrics.render().decode()
    assert written.startswith(b"HTTP/1.1 200") and written.endswith(b'{"ok":1}')
    assert len(sent) < len(body) / 2
    assert probe == "start"
    assert "\ngateway_overflow_recovered_total 1.0\n" in metrics


async def test_what_the_refusal_names_holds_for_later_requests() -> None:
    text = _WIDE.replace('{match: "toy", context: 100000}', "")
    async with running_pipeline(text) as pipeline:
        before = await pipeline.build(make_talk(1))
        await retry(pipeline, make_talk(40), [Reply()])
        after = await pipeline.build(make_talk(1))
    assert (before.limits.context, after.limits.context) == (None, 3_000)


async def test_after_the_last_retry_the_client_gets_the_first_refusal() -> None:
    later = make_refusal(Overflow(context=2_000, prompt_tokens=2_500), b'{"error":{"message":"later"}}')
    async with running_pipeline(_WIDE) as pipeline:
        written = await retry(pipeline, make_talk(40), [later, later, later])
        sizes = [len(body) for body in pipeline.sent]
    assert written.startswith(b"HTTP/1.1 400") and written.endswith(_TOO_LONG.body)
    assert 1 <= len(sizes) <= 2 and sizes == sorted(sizes, reverse=True)


async def test_a_request_that_cannot_become_smaller_is_not_sent_again() -> None:
    async with running_pipeline(_WIDE) as pipeline:
        with pipeline.bus.subscribe() as heard:
            written = await retry(pipeline, make_talk(0), [])
            event = await heard.next()
        assert pipeline.sent == []
    assert written.startswith(b"HTTP/1.1 400") and written.endswith(_TOO_LONG.body)
    assert isinstance(event, Overflowed) and not event.retried


async def test_each_refusal_is_reported() -> None:
    async with running_pipeline(_WIDE) as pipeline:
        with pipeline.bus.subscribe() as heard:
            await retry(pipeline, make_talk(40), [Reply()])
            events = [await heard.next() for _ in range(3)]
    overflowed = [event for event in events if isinstance(event, Overflowed)]
    assert [event.retried for event in overflowed] == [True]
