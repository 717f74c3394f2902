"""Names of stored responses at an upstream with a key of its own: who may use them."""

import json
from collections.abc import AsyncIterator

import pytest

from gateway.bounds.lanes import Lanes
from gateway.core.errors import RequestRefused
from gateway.downstream.request import ReceivedBody
from gateway.pipeline.admission import Route
from gateway.pipeline.exchange import Outcome
from gateway.pipeline.name_guard import NameGuard
from gateway.state.owned_names import OwnedNames
from gateway.wire.response.reader import Reading
from gateway.wire.sse import SseEvent
from gateway.wire.structure import UNBOUNDED
from tests.builders.pipeline import SETTINGS, Pipeline, make_request_head, running_pipeline
from tests.builders.state import make_storage, make_store

KEYED = SETTINGS.replace("discover: false", 'discover: false, api_key: "sk-own"')
HOST = ("Host", "127.0.0.1")
PATH = "/v1/responses"
GIVEN = SseEvent("message", b'{"id": "resp_1", "output": [{"id": "msg_1"}]}')


@pytest.fixture
async def pipeline() -> AsyncIterator[Pipeline]:
    async with running_pipeline(KEYED) as pipeline:
        yield pipeline


@pytest.fixture
async def guard() -> NameGuard:
    return NameGuard(OwnedNames(make_storage(await make_store())), Lanes(), UNBOUNDED)


def admit(pipeline: Pipeline, key: str = "sk-a", path: str = PATH, method: str = "POST") -> Route:
    return pipeline.proxy.admission.admit(make_request_head(path, [HOST], key=key, method=method))


def body(**fields: object) -> ReceivedBody:
    data = json.dumps({"model": "toy", "input": "hi"} | fields).encode()
    return ReceivedBody(data, data)


def give(guard: NameGuard, route: Route) -> None:
    """The upstream responds to this tenant, and names what it stored."""
    exchange = guard.make_exchange(route, route.with_body(b"{}"))
    assert exchange.on_event is not None and exchange.on_outcome is not None
    exchange.on_event(GIVEN)
    exchange.on_outcome(Outcome(200, Reading(None, None, has_error=False, is_complete=True)))


@pytest.mark.parametrize("size", [0, 100_000])
async def test_a_body_may_name_what_its_tenant_made(pipeline: Pipeline, guard: NameGuard, size: int) -> None:
    """Large bodies are read in a thread."""
    named = body(previous_response_id="resp_1", instructions="x" * size)
    with pytest.raises(RequestRefused) as refused:
        await guard.check_body(admit(pipeline), named)
    assert (refused.value.status, refused.value.code) == (400, "previous_response_not_found")
    give(guard, admit(pipeline))
    await guard.check_body(admit(pipeline), named)
    await guard.check_body(admit(pipeline), body(input=[{"type": "item_reference", "id": "msg_1"}]))
    with pytest.raises(RequestRefused):
        await guard.check_body(admit(pipeline, key="sk-b"), named)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_thread_may_be_continued_and_counted_by_its_tenant(
    pipeline: Pipeline, guard: NameGuard, path: str
) -> None:
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    continued = body(messages=[{"role": "user", "content": "and?"}], thread=thread)
    with pytest.raises(RequestRefused) as refused:
        await guard.check_body(admit(pipeline, path=path), continued)
    assert (refused.value.status, refused.value.code) == (404, "thread_not_found")
    give(guard, admit(pipeline))
    await guard.check_body(admit(pipeline, path=path), continued)
    with pytest.raises(RequestRefused):
        await guard.check_body(admit(pipeline, key="sk-b", path=path), continued)


async def test_a_path_may_name_what_its_tenant_made(pipeline: Pipeline, guard: NameGuard) -> None:
    own = admit(pipeline, path=f"{PATH}/resp_1", method="GET")
    with pytest.raises(RequestRefused) as refused:
        await guard.check_path(own)
    assert (refused.value.status, refused.value.code) == (404, "response_not_found")
    give(guard, admit(pipeline))
    await guard.check_path(own)
    with pytest.raises(RequestRefused):
        await guard.check_path(admit(pipeline, key="sk-b", path=f"{PATH}/resp_1", method="GET"))


async def test_a_body_that_hides_its_names_is_refused(pipeline: Pipeline, guard: NameGuard) -> None:
    hidden = b'{"input": "x", "previous_response_id": "r",}'
    with pytest.raises(RequestRefused):
        await guard.check_body(admit(pipeline), ReceivedBody(hidden, hidden))
    encoded = pipeline.proxy.admission.admit(
        make_request_head(PATH, [HOST, ("Content-Encoding", "unknown")], key="sk-a")
    )
    with pytest.raises(RequestRefused):
        await guard.check_body(encoded, ReceivedBody(b"\x01", b"\x01"))


async def test_a_turn_records_the_names_in_its_response(pipeline: Pipeline, guard: NameGuard) -> None:
    route, received = admit(pipeline), body()
    turn = await pipeline.proxy.turns.build(route, received)
    assert turn is not None
    watched = guard.watch(route, turn)
    assert watched.on_event is not None
    watched.on_event(GIVEN)
    await guard.check_body(route, body(previous_response_id="resp_1"))


async def test_a_response_that_is_not_stored_has_no_names_to_record(
    pipeline: Pipeline, guard: NameGuard
) -> None:
    route = admit(pipeline)
    turn = await pipeline.proxy.turns.build(route, body(store=False))
    assert turn is not None and guard.watch(route, turn) is turn


async def test_what_the_settings_open_is_open_to_all(guard: NameGuard) -> None:
    async with running_pipeline(KEYED.replace("api_key", "allow: [responses], api_key")) as pipeline:
        await guard.check_body(admit(pipeline), body(previous_response_id="resp_1"))
        await guard.check_path(admit(pipeline, path=f"{PATH}/resp_1", method="GET"))
        with pytest.raises(RequestRefused):
            await guard.check_body(admit(pipeline), body(conversation={"id": "../files/x"}))


async def test_other_requests_are_not_looked_at(pipeline: Pipeline, guard: NameGuard) -> None:
    route = admit(pipeline, path="/v1/chat/completions")
    await guard.check_path(route)
    await guard.check_body(route, body(previous_response_id="resp_1"))
    assert guard.make_exchange(route, route.with_body(b"")).on_event is None
    chat = b'{"model": "toy", "messages": [{"role": "user", "content": "hi"}]}'
    turn = await pipeline.proxy.turns.build(route, ReceivedBody(chat, chat))
    assert turn is not None and guard.watch(route, turn) is turn
