"""No window is configured. The upstream's model list names it, from the second request on."""

import json

from tests.toy.agent import Shape, make_session
from tests.toy.delivery import Delivery, RawAnswer
from tests.toy.gateway import running_gateway
from tests.toy.running import Pace, run_session, wait_until
from tests.toy.upstream import Seen, ToyUpstream

WINDOW = 16_000
SHAPE = Shape(max_tokens=1_000)
LIST = ("GET", "/v1/models")


def listing(model: str, window: int) -> RawAnswer:
    entry = {"id": model, "object": "model", "owned_by": "vllm", "max_model_len": window}
    return RawAnswer(pieces=(json.dumps({"object": "list", "data": [entry]}).encode(),))


def settings(toy: ToyUpstream, keys: str = "") -> str:
    return f'store: "memory:"\nupstreams: {{default: {{base_url: "{toy.base_url}"{keys}}}}}\n'


def is_list_request(seen: Seen) -> bool:
    """A client's: the gateway's own check at the start has no key."""
    return seen.method == "GET" and "authorization" in {name.lower() for name, _ in seen.headers}


def has_listed(toy: ToyUpstream) -> bool:
    return any(is_list_request(seen) and seen.finished for seen in toy.requests)


async def test_a_window_from_the_model_list_is_respected_from_the_second_request_on() -> None:
    session = make_session(40, 40, "one_user", 500)
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(settings(toy)) as gateway:
        toy.raw_answers[LIST] = listing(session.model, WINDOW)
        first = await run_session(session, gateway.base_url, toy, SHAPE, Pace(last=1))
        await wait_until(lambda: has_listed(toy))
        rest = await run_session(session, gateway.base_url, toy, SHAPE, Pace(first=1))
    assert first.failed == [] and rest.failed == []
    assert rest.refusals == []
    assert rest.summaries
    assert sum(is_list_request(seen) for seen in toy.requests) == 1


async def test_without_discovery_the_window_stays_unknown_and_the_upstream_refuses() -> None:
    """The counterpart: without the list this session does not fit."""
    session = make_session(40, 40, "one_user", 500)
    async with (
        ToyUpstream(window=WINDOW) as toy,
        running_gateway(settings(toy, ", discover: false")) as gateway,
    ):
        toy.raw_answers[LIST] = listing(session.model, WINDOW)
        run = await run_session(session, gateway.base_url, toy, SHAPE)
    assert run.refusals
    assert not has_listed(toy)


async def test_a_model_list_that_never_arrives_delays_no_request() -> None:
    session = make_session(3, 3, "one_user", 500)
    async with ToyUpstream(window=WINDOW) as toy, running_gateway(settings(toy)) as gateway:
        toy.raw_answers[LIST] = RawAnswer(delivery=Delivery(never=True))
        run = await run_session(session, gateway.base_url, toy, SHAPE)
        await wait_until(lambda: any(is_list_request(seen) for seen in toy.requests))
    assert run.failed == []
