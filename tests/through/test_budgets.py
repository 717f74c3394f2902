"""What tenants pay for: their keys, their credentials and the budgets for their summaries."""

import hashlib
import json
from pathlib import Path

import aiohttp
import pytest

from tests.toy.agent import make_session
from tests.toy.house import make_settings
from tests.toy.product import Product, serve
from tests.toy.running import Answer, Pace, ask, run_session
from tests.toy.upstream import ToyUpstream

_CHAT = {"model": "toy-1", "messages": [{"role": "user", "content": "Hi."}]}


def tenants(*lines: str, more: str = "") -> str:
    """Settings with tenants: one line of keys for each."""
    return "tenants:\n" + "".join(f"  - {{{line}}}\n" for line in lines) + more


async def post(gateway: Product, path: str, key: str = "sk-a") -> Answer:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as client:
        return await ask(client, gateway.root_url + path, json.dumps(_CHAT).encode())


async def test_new_keys_go_on_with_the_conversations_of_the_old_ones(tmp_path: Path) -> None:
    session, steps = make_session(40, 3), (("old", 0, 34), ("new", 34, 37), ("new", 37, 40))
    keys = ("[old]", f"[old, 'sha256:{hashlib.sha256(b'new').hexdigest()}']", "[new]")
    async with ToyUpstream(window=16_000) as toy:
        runs = []
        for (key, first, last), accepted in zip(steps, keys, strict=True):
            more = tenants(f"name: a, keys: {accepted}")
            settings = make_settings(toy, store=f"disk:{tmp_path / 'store'}", more=more)
            async with serve(settings) as gateway:
                pace = Pace(first=first, last=last, key=key)
                runs.append(await run_session(session, gateway.base_url, toy, pace=pace))
                await gateway.at_rest()
        assert [run.failed for run in runs] == [[]] * 3
        assert {plan for run in runs[1:] for plan in run.plans} <= {"pivot", "pivot+pruned"}
        assert len({run.conversation for run in runs}) == 1
        assert runs[1].summaries == []


async def test_a_tenants_own_credential_pays_for_its_requests_and_its_summaries() -> None:
    session = make_session(24, 3)
    more = tenants("name: a, keys: [sk-a], upstream: default, api_key: sk-own", "name: b, keys: [sk-b]")
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, more=more)) as gateway,
    ):
        run = await run_session(session, gateway.base_url, toy, pace=Pace(key="sk-a"))
        await gateway.at_rest()
        assert run.failed == [] and run.summaries
        assert (await post(gateway, "/v1/chat/completions", "sk-b")).is_whole
    sent = [dict(seen.headers)["Authorization"] for seen in toy.requests]
    assert set(sent[:-1]) == {"Bearer sk-own"} and sent[-1] == "Bearer sk-b"


@pytest.mark.parametrize("calls", [0, 1])
async def test_over_the_budget_conversations_go_on_with_digests(
    calls: int, caplog: pytest.LogCaptureFixture
) -> None:
    session = make_session(60, 3)
    more = tenants(
        f"name: a, keys: [sk-a], summary_budget: {{calls_per_hour: {calls}}}",
        more="admin: {port: 0}\npolicies: {default: {compaction: {prune: false}}}\n",
    )
    async with (
        ToyUpstream(window=16_000) as toy,
        serve(make_settings(toy, more=more)) as gateway,
        aiohttp.ClientSession() as client,
    ):
        run = await run_session(session, gateway.base_url, toy, pace=Pace(key="sk-a"))
        await gateway.at_rest()
        async with client.get(f"http://127.0.0.1:{gateway.admin_port}/metrics") as response:
            metrics = await response.text()
    assert run.failed == [] and run.refusals == []
    assert len(toy.summaries) == calls
    assert "digest" in run.plans and ("pivot" in run.plans) == bool(calls)
    assert 'gateway_summaries_over_budget_total{tenant="a"}' in metrics
    used_up = [record for record in caplog.records if "is used up" in record.getMessage()]
    assert len(used_up) == 1
    assert not [record for record in caplog.records if "compaction failed" in record.getMessage()]


async def test_tokens_of_summaries_are_those_that_the_upstream_reports() -> None:
    """A budget that holds one summary by its usage, and not two."""
    session = make_session(60, 3)
    policy = "policies: {default: {compaction: {prune: false}}}\n"
    async with ToyUpstream(window=16_000) as toy:
        async with serve(
            make_settings(toy, store="memory:", more=tenants("name: a, keys: [sk-a]", more=policy))
        ) as gateway:
            await run_session(session, gateway.base_url, toy, pace=Pace(key="sk-a"))
            await gateway.at_rest()
        first = toy.summaries[0].prompt_tokens
        assert len(toy.summaries) > 1
        toy.requests.clear()
        budget = f"name: a, keys: [sk-a], summary_budget: {{tokens_per_hour: {int(first * 1.5)}}}"
        async with serve(make_settings(toy, store="memory:", more=tenants(budget, more=policy))) as gateway:
            run = await run_session(session, gateway.base_url, toy, pace=Pace(key="sk-a"))
            await gateway.at_rest()
    assert run.failed == []
    assert len(toy.summaries) == 1
