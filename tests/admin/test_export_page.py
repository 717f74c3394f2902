"""A conversation as lines, from a running gateway to a replay of it."""

import asyncio
import json
import logging
from pathlib import Path

import aiohttp
import pytest

from gateway.replay.sources import find_sources, read_source
from tests.hostile.process import run_command
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0, token: sesame}\n"
_HEADERS = {"Authorization": "Bearer sesame"}


async def test_a_replay_reads_what_is_exported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.admin")
    session = make_session(30, 3)
    async with ToyUpstream(window=16_000) as toy:
        toy.reply = lambda request: session.reply(0)
        async with running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
            # A body on several lines is one line of the export.
            run = await run_session(session, gateway.base_url, toy, Shape(indent=1))
            await gateway.settle()
            url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}/export"
            async with aiohttp.ClientSession(headers=_HEADERS) as client, client.get(url) as response:
                assert (response.status, response.content_type) == (200, "application/x-ndjson")
                data = await response.read()
    lines = [json.loads(line) for line in data.splitlines()]
    assert {name: lines[0][name] for name in ("type", "version", "id", "format")} == {
        "type": "gateway.export",
        "version": 1,
        "id": run.conversation,
        "format": "chat",
    }
    kinds = [line["type"] for line in lines]
    assert kinds.count("request") == len(session)
    assert "summary" in kinds
    path = tmp_path / "export.ndjson"
    path.write_bytes(data)
    recording = read_source(find_sources([path]).found[0], "")
    requests = [*recording.list_requests()]
    assert (recording.kind, recording.skipped, len(requests)) == ("gateway export", 0, len(session))
    assert json.loads(requests[-1].body) == json.loads(session.request(len(session) - 1))
    assert requests[0].usage is not None
    assert f"texts shown: conversation={run.conversation} what=export to=127.0.0.1" in caplog.messages


async def test_a_replay_of_an_export_keeps_window_price_and_totals(tmp_path: Path) -> None:
    """Without the settings of the gateway that it comes from."""
    session = make_session(30, 3)
    price = "{input: 3, cached: 1, output: 15}"
    policies = "policies: {default: {economy: 0}}\n"
    async with ToyUpstream(window=16_000) as toy:
        toy.reply = lambda request: session.reply(0)
        async with running_gateway(make_settings(toy, price=price, more=_ADMIN + policies)) as gateway:
            run = await run_session(session, gateway.base_url, toy)
            await gateway.settle()
            url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}"
            async with (
                aiohttp.ClientSession(headers=_HEADERS) as client,
                client.get(f"{url}/export") as export,
                client.get(url) as shown,
            ):
                path, row = tmp_path / "export.ndjson", await shown.json()
                path.write_bytes(await export.read())
    replayed = await asyncio.to_thread(run_command, "replay", str(path), "--json", cwd=tmp_path)
    assert replayed.returncode == 0, replayed.stderr
    (result,) = json.loads(replayed.stdout)["policies"]
    sums, cost = result["sums"], result["cost"]
    assert (sums["window"], sums["requests"], cost["unpriced_requests"]) == (16_000, row["requests"], 0)
    assert sums["compactions"] == row["compactions"] > 0
    assert sums["received"] == pytest.approx(row["total_received_tokens"], rel=0.05)
    assert sums["sent"] == pytest.approx(row["total_sent_tokens"], rel=0.2)
    assert cost["with_usd"] > 0


@pytest.mark.parametrize("admin", ["admin: {port: 0}\npolicies: {default: {show_texts: false}}\n", _ADMIN])
async def test_without_leave_or_a_body_there_is_a_problem(admin: str) -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=admin)) as gateway:
        run = await run_session(make_session(1, 3), gateway.base_url, toy)
        gateway.parts.foundation.registry.forget_turns()
        url = f"http://127.0.0.1:{gateway.admin_port}/api/v1/conversations/{run.conversation}/export"
        async with aiohttp.ClientSession(headers=_HEADERS) as client, client.get(url) as response:
            assert response.status == (409 if admin == _ADMIN else 403)
            assert response.content_type == "application/problem+json"
