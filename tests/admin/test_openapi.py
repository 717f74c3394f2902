"""The document of the admin API is valid, and describes every real answer, problems included."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.openapi import make_document, render_document
from gateway.admin.operations import OPERATIONS
from gateway.store import StoreError
from gateway.store.keys import make_tag
from gateway.store.memory import MemoryStore
from gateway.store.stores import Stores
from gateway.tenants import make_tenant_id
from tests.toy.admin_port import ADMIN, TOKEN
from tests.toy.agent import Shape, make_session
from tests.toy.delivery import Delivery
from tests.toy.documented_api import DocumentedAPI, make_validator, open_documented_api
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, Run, run_session
from tests.toy.upstream import ToyUpstream
from tests.toy.workers import running_front, running_worker, socket_paths

_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
_MORE = ADMIN + _TENANTS
# Names of a conversation, an original and a summary that there are not.
_NOWHERE = {"id": "0123456789abcdef", "digest": "0" * 64, "key": "0" * 64}
_LISTENERS = 32


def test_the_document_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(json.loads(render_document())).validate()


def test_every_operation_is_described_once_under_the_versioned_path() -> None:
    document = make_document()
    described = {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert described.keys() == {(each.method, f"/api/v1{each.path}") for each in OPERATIONS}
    assert len({operation["operationId"] for operation in described.values()}) == len(OPERATIONS)
    assert all(operation["summary"].endswith(".") for operation in described.values())


_NO_TOTALS: dict[str, list[object]] = {"tenants": [], "models": []}


@pytest.mark.parametrize(
    "wrong", [_NO_TOTALS, {**_NO_TOTALS, "tenants": [{"tenant": "red"}]}, {"tenant": 1}, []]
)
def test_an_answer_that_is_not_as_described_is_found(wrong: object) -> None:
    document = make_document()
    schema = document["paths"]["/api/v1/totals"]["get"]["responses"]["200"]["content"]["application/json"]
    is_valid = make_validator(document, schema["schema"]).is_valid(wrong)
    assert is_valid == (wrong == _NO_TOTALS)
    assert not make_validator(document, schema["schema"]).is_valid({"tenants": [], "more": 1})


class _RefusingStore(MemoryStore):
    """Deletes nothing while it refuses."""

    refuses = False

    async def purge(self, tag: str) -> int:
        if self.refuses:
            raise StoreError("the disk is full")
        return await super().purge(tag)


@dataclass
class Subject:
    """A gateway and its admin port. gateway: the process that gets the requests; stores: of all processes."""

    api: DocumentedAPI
    toy: ToyUpstream
    gateway: RunningGateway
    stores: Sequence[_RefusingStore]
    live: LiveWorkers

    async def play(self, seed: int, turns: int, pace: Pace) -> Run:
        session = make_session(turns, seed)
        run = await run_session(session, self.gateway.base_url, self.toy, Shape(max_tokens=1_000), pace)
        assert run.failed == []
        await self.gateway.settle()
        return run


@asynccontextmanager
async def one_process(toy: ToyUpstream) -> AsyncIterator[Subject]:
    store = _RefusingStore()
    async with running_gateway(make_settings(toy, more=_MORE), stores=_make_stores(store)) as gateway:
        api = await open_documented_api(f"http://127.0.0.1:{gateway.admin_port}", TOKEN)
        yield Subject(api, toy, gateway, [store], LiveWorkers())


@asynccontextmanager
async def two_workers(toy: ToyUpstream) -> AsyncIterator[Subject]:
    """The first one gets all requests."""
    live, stores = LiveWorkers(), [_RefusingStore(), _RefusingStore()]
    with socket_paths() as paths:
        async with AsyncExitStack() as exits:
            front = await exits.enter_async_context(running_front(live, TOKEN))
            workers = list[RunningGateway]()
            for store in stores:
                socket: Path = next(paths)
                worker = running_worker(make_settings(toy, more=_MORE), socket, _make_stores(store))
                workers.append(await exits.enter_async_context(worker))
                live.add(socket)
            api = await open_documented_api(f"http://127.0.0.1:{front.port}", TOKEN)
            yield Subject(api, toy, workers[0], stores, live)


def _make_stores(main: MemoryStore) -> Stores:
    return Stores(main=main, originals=MemoryStore(), named=MemoryStore())


# What makes an operation answer well. Each one needs a visit.


async def visit_lists(subject: Subject, identity: str) -> None:
    call = subject.api.call
    first = (await call("listConversations", "?limit=1")).json()
    second = (await call("listConversations", f"?limit=1&cursor={first['next']}")).json()
    assert [first["conversations"][0]["tenant"], second["conversations"][0]["tenant"]] == ["blue", "red"]
    assert second["next"] is None and second["conversations"][0]["id"] == identity
    assert second["conversations"][0]["pivot"]["kind"] == "summary"
    assert (
        await call("listConversations", "?tenant=red&model=toy-model&q=" + identity[2:6])
    ).json() == second
    totals = (await call("showTotals")).json()["tenants"]
    assert [(each["tenant"], each["conversations"]) for each in totals] == [("blue", 1), ("red", 1)]


async def visit_gateway(subject: Subject, _: str) -> None:
    shown = (await subject.api.call("showGateway")).json()
    assert (shown["token_required"], shown["texts"]) == (True, "token")
    assert (await subject.api.call("showDocument")).json() == subject.api.document


async def visit_conversation(subject: Subject, identity: str) -> None:
    shown = (await subject.api.call("showConversation", names={"id": identity})).json()
    assert shown["texts"] == {"allowed": True, "reason": None}
    listed = (await subject.api.call("listRequests", names={"id": identity})).json()
    assert len(listed["requests"]) == shown["requests"] and listed["left_off"] == 0
    assert {each["plan"] for each in listed["requests"]} == {"passthrough", "pivot"}
    assert "compaction" in {each["change"] for each in listed["requests"]}


async def visit_history(subject: Subject, identity: str) -> None:
    assert (await subject.api.call("listLog", names={"id": identity})).json()["log"]
    taken = (await subject.api.call("listOriginals", names={"id": identity})).json()["taken"]
    digest = taken[0]["messages"][0]["digest"]
    assert (await subject.api.call("showOriginal", names={"id": identity, "digest": digest})).status == 200
    found = (await subject.api.call("searchOriginals", "?q=file&limit=2", names={"id": identity})).json()
    assert found["id"] == identity and 0 < len(found["found"]) <= 2


async def visit_session(subject: Subject, identity: str) -> None:
    call, names = subject.api.call, {"id": identity}
    shown = (await call("showSession", names=names)).json()
    assert shown["title"] and shown["summary"]["text"]
    assert (await call("showDiff", names=names)).json()["message"] is None
    asked = {**subject.api.headers, "Accept": "text/markdown"}
    for query, headers in (("?format=markdown", subject.api.headers), ("", asked)):
        answer = await call("showSession", query, headers=headers, names=names)
        assert answer.headers["Content-Type"].startswith("text/markdown")
        assert answer.body.startswith(b"# ")


async def visit_compact(subject: Subject, identity: str) -> None:
    release = asyncio.Event()
    subject.toy.summary_delivery = Delivery(after=release)
    assert (
        await subject.api.call("compact", body=b'{"instructions": "Short."}', names={"id": identity})
    ).status == 202
    assert (await subject.api.call("compact", names={"id": identity})).status == 409
    release.set()
    await subject.gateway.settle()


async def visit_words(subject: Subject, identity: str) -> None:
    """What the conversation says, until its newest body is not in memory any more."""
    call = subject.api.call
    page = (await call("listMessages", "?limit=3", names={"id": identity})).json()
    assert len(page["received"]) == page["next"] == 3 < page["total"]["received"]
    assert (await call("exportConversation", names={"id": identity})).status == 200
    (summary, *_) = (await call("listSummaries", names={"id": identity})).json()["summaries"]
    names = {"id": identity, "key": summary["key"]}
    for text, status in (("Mine.", 200), ("", 422)):
        body = json.dumps({"text": text}).encode()
        assert (await call("editSummary", body=body, names=names)).status == status
    assert (await call("restoreSummary", body=b'{"version": 1}', names=names)).json()["version"] == 3
    subject.gateway.parts.foundation.registry.forget_turns()
    assert (await call("listMessages", names={"id": identity})).status == 409
    assert (await call("exportConversation", names={"id": identity})).status == 409
    assert (await call("editSummary", body=b'{"text": "x"}', names=names)).status == 409
    assert (await call("restoreSummary", body=b'{"version": 1}', names=names)).status == 409


async def visit_end(subject: Subject, _: str) -> None:
    """Of another conversation."""
    gone = (await subject.play(5, 2, Pace(key="sk-red"))).conversation
    assert (await subject.api.call("deleteConversation", names={"id": gone})).json()["id"] == gone
    assert (await subject.api.call("showConversation", names={"id": gone})).status == 404


async def visit_events(subject: Subject, _: str) -> None:
    assert (await subject.api.call("streamEvents")).body == b": listening\n\n"
    async with aiohttp.ClientSession(headers=subject.api.headers) as client, AsyncExitStack() as streams:
        for _listener in range(_LISTENERS):
            url = f"{subject.api.root_url}/api/v1/events"
            stream = await streams.enter_async_context(client.get(url))
            await stream.content.readuntil(b"\n\n")
        assert (await subject.api.call("streamEvents")).status == 503


async def visit_purge(subject: Subject, _: str) -> None:
    body = json.dumps({"tag": make_tag(make_tenant_id("blue"))}).encode()
    for refuses, status in ((True, 503), (False, 200)):
        for store in subject.stores:
            store.refuses = refuses
        assert (await subject.api.call("purgeTenant", body=body)).status == status


_VISITS: Sequence[Callable[[Subject, str], Awaitable[None]]] = (
    visit_lists,
    visit_gateway,
    visit_conversation,
    visit_history,
    visit_session,
    visit_compact,
    visit_words,
    visit_events,
    visit_purge,
    visit_end,
)
# What needs no worker.
_SUPERVISED = ("showGateway", "showDocument", "streamEvents")
# Of operations that refuse a conversation that is not known only once they have understood the body.
_BODIES = {"purgeTenant": b'{"tag": "x"}'}


async def be_refused(api: DocumentedAPI, identity: str) -> None:
    """Without a token, from a foreign page, for what is not understood, and for what is not known."""
    for _, _, operation in api.list_operations():
        name = operation["operationId"]
        assert (await api.call(name, headers={}, names=_NOWHERE)).status == 401
        assert (
            await api.call(name, headers={**api.headers, "Host": "evil.example"}, names=_NOWHERE)
        ).status == 403
        if "404" in operation["responses"]:
            assert (await api.call(name, body=_BODIES.get(name, b""), names=_NOWHERE)).status == 404
        if "400" in operation["responses"]:
            known = {**_NOWHERE, "id": identity}
            body = b"{" if "requestBody" in operation else b""
            assert (await api.call(name, "?limit=0&format=x&message=x", body, names=known)).status == 400


async def ask_in_vain(api: DocumentedAPI, live: LiveWorkers, identity: str) -> None:
    """No worker is there to answer, so only what the supervisor knows itself is shown."""
    for socket in live.sockets:
        live.remove(socket)
    for _, _, operation in api.list_operations():
        name = operation["operationId"]
        answer = await api.call(name, names={**_NOWHERE, "id": identity})
        shown = answer.status if name in _SUPERVISED else answer.headers.get("Retry-After")
        assert shown == (200 if name in _SUPERVISED else "1"), name


@pytest.mark.timeout(300)
async def test_every_answer_of_one_process_is_as_described() -> None:
    async with ToyUpstream(window=16_000) as toy, one_process(toy) as subject:
        await visit_all(subject)
        # A process that lives answers for itself.
        elsewhere = {(name, 503) for name, _ in subject.api.seen} - subject.api.seen
        assert subject.api.list_statuses() - elsewhere == subject.api.seen


@pytest.mark.timeout(300)
async def test_every_answer_over_several_workers_is_as_described() -> None:
    async with ToyUpstream(window=16_000) as toy, two_workers(toy) as subject:
        identity = await visit_all(subject)
        await ask_in_vain(subject.api, subject.live, identity)
        assert subject.api.list_statuses() == subject.api.seen


async def visit_all(subject: Subject) -> str:
    """The conversation that was looked at."""
    identity = (await subject.play(3, 30, Pace(key="sk-red"))).conversation
    await subject.play(4, 2, Pace(key="sk-blue"))
    for visit in _VISITS:
        await visit(subject, identity)
    await be_refused(subject.api, identity)
    return identity
