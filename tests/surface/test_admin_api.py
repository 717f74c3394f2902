"""The document of the admin API is valid, and describes every answer of a gateway, problems included."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.toy.agent import Shape, make_session
from tests.toy.delivery import Delivery
from tests.toy.documented_api import DocumentedAPI, make_validator, open_documented_api
from tests.toy.house import ADMIN, ADMIN_TOKEN, House, make_settings
from tests.toy.product import Product, serve
from tests.toy.running import Run
from tests.toy.upstream import ToyUpstream

_TENANTS = "tenants:\n  - {name: red, keys: [sk-red]}\n  - {name: blue, keys: [sk-blue]}\n"
# Names of a conversation, an original and a summary that there are not.
_NOWHERE = {"id": "0123456789abcdef", "digest": "0" * 64, "key": "0" * 64}
_LISTENERS = 32
# Of operations that refuse a conversation that is not known only once they have understood the body.
_BODIES = {"purgeTenant": b'{"tag": "x"}'}


@dataclass
class Subject:
    api: DocumentedAPI
    toy: ToyUpstream
    product: Product

    async def play(self, key: str, seed: int, turns: int) -> Run:
        house = House(self.toy, self.product, key)
        run = await house.play(make_session(turns, seed), Shape(max_tokens=1_000))
        assert run.failed == []
        await house.at_rest()
        return run


async def visit_lists(subject: Subject, identity: str) -> None:
    call = subject.api.call
    first = (await call("listConversations", "?limit=1")).json()
    second = (await call("listConversations", f"?limit=1&cursor={first['next']}")).json()
    assert [first["conversations"][0]["tenant"], second["conversations"][0]["tenant"]] == ["blue", "red"]
    assert second["next"] is None and second["conversations"][0]["id"] == identity
    assert second["conversations"][0]["pivot"]["kind"] == "summary"
    query = f"?tenant=red&model=toy-model&q={identity[2:6]}"
    assert (await call("listConversations", query)).json() == second
    totals = (await call("showTotals")).json()["tenants"]
    assert [(each["tenant"], each["conversations"]) for each in totals] == [("blue", 1), ("red", 1)]


async def visit_gateway(subject: Subject, _: str) -> None:
    shown = (await subject.api.call("showGateway")).json()
    assert (shown["token_required"], shown["texts"]) == (True, "token")
    assert shown["data_url"] == subject.product.root_url
    assert [(each["format"], each["provider"], each["key"]) for each in shown["clients"]] == [
        (name, f"127.0.0.1:{subject.toy.port}", "tenant") for name in ("chat", "responses", "messages")
    ]
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
    body = b'{"instructions": "Short."}'
    assert (await subject.api.call("compact", body=body, names={"id": identity})).status == 202
    assert (await subject.api.call("compact", names={"id": identity})).status == 409
    release.set()
    await subject.product.at_rest()


async def visit_words(subject: Subject, identity: str) -> None:
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


async def visit_events(subject: Subject, _: str) -> None:
    assert (await subject.api.call("streamEvents")).body == b": listening\n\n"
    async with aiohttp.ClientSession(headers=subject.api.headers) as client, AsyncExitStack() as streams:
        for _listener in range(_LISTENERS):
            url = f"{subject.api.root_url}/api/v1/events"
            stream = await streams.enter_async_context(client.get(url))
            await stream.content.readuntil(b"\n\n")
        refused = await subject.api.call("streamEvents")
        assert refused.status == 503 and refused.json()["detail"] == "too many listeners"


async def visit_purge(subject: Subject, _: str) -> None:
    """A tenant is named by a hash, as in the keys of a store."""
    tag = hashlib.sha256(b"owner:tenant:blue").hexdigest()[:32]
    purged = await subject.api.call("purgeTenant", body=json.dumps({"tag": tag}).encode())
    assert purged.status == 200 and purged.json()["state"] > 0
    listed = (await subject.api.call("listConversations")).json()["conversations"]
    assert {each["tenant"] for each in listed} == {"red"}


async def visit_end(subject: Subject, _: str) -> None:
    """Of another conversation."""
    gone = (await subject.play("sk-red", 5, 2)).conversation
    assert (await subject.api.call("deleteConversation", names={"id": gone})).json()["id"] == gone
    assert (await subject.api.call("showConversation", names={"id": gone})).status == 404


_VISITS: Sequence[Callable[[Subject, str], Awaitable[None]]] = (
    *(visit_lists, visit_gateway, visit_conversation, visit_history, visit_session, visit_compact),
    *(visit_words, visit_events, visit_purge, visit_end),
)


async def be_refused(api: DocumentedAPI, identity: str) -> None:
    """Without a token, from a foreign page, for what is not understood, and for what is not known."""
    foreign = {**api.headers, "Host": "evil.example"}
    for _, _, operation in api.list_operations():
        name = operation["operationId"]
        assert (await api.call(name, headers={}, names=_NOWHERE)).status == 401
        assert (await api.call(name, headers=foreign, names=_NOWHERE)).status == 403
        if "404" in operation["responses"]:
            assert (await api.call(name, body=_BODIES.get(name, b""), names=_NOWHERE)).status == 404
        if "400" in operation["responses"]:
            known = {**_NOWHERE, "id": identity}
            body = b"{" if "requestBody" in operation else b""
            assert (await api.call(name, "?limit=0&format=x&message=x", body, names=known)).status == 400


async def miss_the_body(subject: Subject, identity: str) -> None:
    """After a start the newest body of a conversation is not in memory."""
    call, names = subject.api.call, {"id": identity}
    assert (await call("listMessages", names=names)).status == 409
    assert (await call("exportConversation", names=names)).status == 409
    (summary, *_) = (await call("listSummaries", names=names)).json()["summaries"]
    names = {"id": identity, "key": summary["key"]}
    assert (await call("editSummary", body=b'{"text": "x"}', names=names)).status == 409
    refused = await call("restoreSummary", body=b'{"version": 1}', names=names)
    assert refused.status == 409 and "not in memory" in refused.json()["detail"]


@pytest.mark.timeout(300)
async def test_every_answer_of_a_gateway_is_as_described(tmp_path: Path) -> None:
    async with ToyUpstream(window=16_000) as toy:
        settings = make_settings(toy, store=f"disk:{tmp_path}/state", more=ADMIN + _TENANTS)
        async with serve(settings) as product:
            api = await open_documented_api(product.admin_url, ADMIN_TOKEN)
            subject = Subject(api, toy, product)
            identity = (await subject.play("sk-red", 3, 30)).conversation
            await subject.play("sk-blue", 4, 2)
            for visit in _VISITS:
                await visit(subject, identity)
            await be_refused(api, identity)
        async with serve(settings) as product:
            api.root_url = product.admin_url
            while (await api.call("showConversation", names={"id": identity})).status == 404:
                await asyncio.sleep(0.02)
            await miss_the_body(Subject(api, toy, product), identity)
    # A process that lives answers for itself, and a store that cannot delete is none of a black box.
    elsewhere = {(name, 503) for name, _ in api.seen} - api.seen
    assert api.list_statuses() - elsewhere == api.seen


@pytest.fixture
async def document() -> Any:
    async with ToyUpstream() as toy, serve(make_settings(toy, more="admin: {port: 0}\n")) as product:
        return (await open_documented_api(product.admin_url)).document


async def test_the_document_is_valid_and_describes_each_operation_once(document: Any) -> None:
    OpenAPIV31SpecValidator(document).validate()
    operations = [each for _, _, each in DocumentedAPI("", document, {}).list_operations()]
    names = {operation["operationId"] for operation in operations}
    assert len(names) == len(operations) > 20
    for operation in operations:
        has_id = any(each["name"] == "id" for each in operation.get("parameters", ()))
        assert operation["summary"].endswith(".")
        assert has_id == ("404" in operation["responses"]), operation["operationId"]
        assert "requestBody" not in operation or "400" in operation["responses"]


async def test_an_answer_that_is_not_as_described_is_found(document: Any) -> None:
    answers = document["paths"]["/api/v1/totals"]["get"]["responses"]
    validator = make_validator(document, answers["200"]["content"]["application/json"]["schema"])
    assert validator.is_valid({"tenants": [], "models": []})
    wrong: list[object] = [{"tenants": [{"tenant": "red"}], "models": []}, {"tenant": 1}, []]
    for each in (*wrong, {"tenants": [], "more": 1}):
        assert not validator.is_valid(each)
