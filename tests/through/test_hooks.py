"""Webhooks over real sockets."""

import asyncio
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.toy.admin_calls import ask_to_compact
from tests.toy.agent import Shape, make_session
from tests.toy.house import ADMIN, make_settings
from tests.toy.product import Product, serve
from tests.toy.running import Pace, run_session, wait_until
from tests.toy.summarising import SOURCE_PROMPT
from tests.toy.upstream import ToyUpstream

Responding = Callable[[web.BaseRequest], web.Response]


def responding(**fields: object) -> Responding:
    return lambda _: web.json_response(fields)


class Listener:
    """Records what it is sent."""

    def __init__(self, respond: Responding, delay_seconds: float = 0.0) -> None:
        self.respond = respond
        self.delay_seconds = delay_seconds
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.port = 0

    @property
    def heard(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    async def serve(self, request: web.BaseRequest) -> web.Response:
        self.bodies.append(await request.read())
        self.headers.append(dict(request.headers))
        await asyncio.sleep(self.delay_seconds)
        return self.respond(request)


@asynccontextmanager
async def listening(respond: Responding, delay_seconds: float = 0.0) -> AsyncIterator[Listener]:
    listener = Listener(respond, delay_seconds)
    runner = web.ServerRunner(web.Server(listener.serve), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    listener.port = runner.addresses[0][1]
    try:
        yield listener
    finally:
        await runner.cleanup()


def hook_settings(*ports: int, timeout: float = 5, name: str = "pre_compact") -> str:
    targets = [
        f'{{url: "http://127.0.0.1:{port}/hook?key=1", secret: s3cret, timeout_seconds: {timeout}}}'
        for port in ports
    ]
    return f"{ADMIN}hooks: {{{name}: [{', '.join(targets)}]}}\n"


async def compact_manually(product: Product, toy: ToyUpstream, instructions: str = "") -> list[str]:
    """Returns the plans of the two requests after the compaction."""
    session = make_session(14, 3)
    before = await run_session(session, product.base_url, toy, pace=Pace(first=0, last=12))
    body = json.dumps({"instructions": instructions}).encode()
    assert (await ask_to_compact(product, before.conversation, body))[0] == 202
    await product.at_rest()
    after = await run_session(session, product.base_url, toy, pace=Pace(first=12, last=14))
    return [answer.header("x-gateway-plan") or "" for answer in after.answers]


@pytest.mark.system(14)
async def test_a_webhook_gets_the_documented_fields_and_a_signature() -> None:
    async with (
        ToyUpstream() as toy,
        listening(responding()) as hook,
        serve(make_settings(toy, more=hook_settings(hook.port))) as gateway,
    ):
        assert await compact_manually(gateway, toy, "Keep names.") == ["pivot", "pivot"]
    (heard,) = hook.heard
    assert heard.pop("pre_tokens") > 5_000 and len(heard.pop("conversation")) == 16
    assert heard.pop("tenant").startswith("key:")
    assert heard.pop("reason") == "manual"
    assert heard == {"hook": "pre_compact", "trigger": "manual", "custom_instructions": "Keep names."}
    (headers,) = hook.headers
    signed = headers["X-Gateway-Timestamp"].encode() + b"." + hook.bodies[0]
    assert (
        headers["X-Gateway-Signature"] == f"sha256={hmac.new(b's3cret', signed, hashlib.sha256).hexdigest()}"
    )


@pytest.mark.system(8)
async def test_webhooks_add_context_change_instructions_and_replace_the_prompt_in_turn() -> None:
    first = responding(instructions="Keep colours.", context=["Branch: main"])
    second = responding(prompt=f"Be brief. {SOURCE_PROMPT}", context=["Build: red"])
    async with (
        ToyUpstream() as toy,
        listening(first) as one,
        listening(second) as two,
        serve(make_settings(toy, more=hook_settings(one.port, two.port))) as gateway,
    ):
        assert await compact_manually(gateway, toy, "Keep names.") == ["pivot", "pivot"]
    assert two.heard[0]["custom_instructions"] == "Keep colours."
    asked = json.loads(toy.summaries[0].body)["messages"][-1]["content"]
    # The prompt replaces the usual one; the rest follows it.
    assert f"Be brief. {SOURCE_PROMPT}\n\nKeep colours.\n\nBranch: main\nBuild: red\n\nWrite at most" in asked
    assert "Keep names." not in asked


async def test_a_blank_prompt_of_a_webhook_keeps_the_usual_one() -> None:
    async with (
        ToyUpstream() as toy,
        listening(responding(prompt=" ", instructions="Keep names.")) as hook,
        serve(make_settings(toy, more=hook_settings(hook.port))) as gateway,
    ):
        assert await compact_manually(gateway, toy) == ["pivot", "pivot"]
    asked = json.loads(toy.summaries[0].body)["messages"][-1]["content"]
    assert "\n\nKeep names.\n\nWrite at most" in asked


async def test_after_a_veto_of_a_manual_compaction_no_model_is_called() -> None:
    async with (
        ToyUpstream() as toy,
        listening(responding(veto=True)) as hook,
        serve(make_settings(toy, more=hook_settings(hook.port))) as gateway,
    ):
        assert await compact_manually(gateway, toy) == ["passthrough", "passthrough"]
    assert toy.summaries == [] and len(hook.heard) == 1


async def test_after_a_veto_a_digest_is_made_only_when_a_request_exceeds_the_window() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        listening(responding(veto=True)) as hook,
        serve(make_settings(toy, more=hook_settings(hook.port))) as gateway,
    ):
        run = await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
    plans = [answer.header("x-gateway-plan") for answer in run.answers]
    assert run.failed == [] and run.refusals == [] and toy.summaries == []
    assert "digest" in plans and {each["trigger"] for each in hook.heard} == {"auto"}
    before = run.outgoing[plans.index("digest") - 1]
    # Above the hard threshold (12,000) requests went out unchanged until the window was exceeded.
    assert before.prompt_tokens > 12_000


@pytest.mark.parametrize(
    ("respond", "delay_seconds", "logged"),
    [
        (lambda _: web.Response(status=500), 0, "status 500"),
        (lambda _: web.Response(status=307, headers={"Location": "/other"}), 0, "status 307"),
        (lambda _: web.Response(text="veto"), 0, "response not understood"),
        (responding(veto="yes"), 0, "response not understood"),
        (lambda _: web.Response(text=" " * 70_000), 0, "response too long"),
        (responding(veto=True), 1.0, "did not answer in time"),
    ],
)
async def test_a_failing_webhook_is_ignored_and_logged(
    respond: Responding, delay_seconds: float, logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ToyUpstream() as toy,
        listening(respond, delay_seconds) as hook,
        serve(make_settings(toy, more=hook_settings(hook.port, timeout=0.3))) as gateway,
    ):
        assert await compact_manually(gateway, toy) == ["pivot", "pivot"]
    assert len(hook.bodies) == 1 and logged in caplog.text
    # The path may hold a secret, too.
    assert "s3cret" not in caplog.text and "key=1" not in caplog.text


async def test_an_unreachable_webhook_is_ignored() -> None:
    async with ToyUpstream() as toy, serve(make_settings(toy, more=hook_settings(1))) as gateway:
        assert await compact_manually(gateway, toy) == ["pivot", "pivot"]


@pytest.mark.system(14)
async def test_after_a_compaction_the_webhook_is_told_of_the_session_start() -> None:
    async with (
        ToyUpstream() as toy,
        listening(responding()) as hook,
        serve(make_settings(toy, more=hook_settings(hook.port, name="session_start"))) as gateway,
    ):
        await compact_manually(gateway, toy)
        await wait_until(lambda: bool(hook.bodies))
    (heard,) = hook.heard
    assert (heard["hook"], heard["source"], heard["trigger"]) == ("session_start", "compact", "manual")
    assert heard["pre_tokens"] > 5_000


# Hooks that are installed as Python packages.


def _install(folder: Path, code: str) -> None:
    (folder / "toy_plugged_hook.py").write_text(code, "utf-8")
    info = folder / "toy_plugged_hook-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugged-hook\nVersion: 1.0\n", "utf-8")
    names = ("asked", "slow", "failing", "wrong")
    entries = "".join(f"{name} = toy_plugged_hook:{name}\n" for name in (*names, "missing"))
    (info / "entry_points.txt").write_text(f"[gateway.hooks]\n{entries}", "utf-8")


_CODE = """
class asked:
    def pre_compact(before):
        return {"context": ["Trigger was " + before.trigger], "more": 1}
    async def session_start(after):
        raise ValueError(after.source)
class slow:
    async def session_start(after):
        print(after.conversation)
class failing:
    def pre_compact(before):
        raise OSError("secret")
class wrong:
    def pre_compact(before):
        return {"context": "not a list"}
"""


@pytest.mark.system(8)
async def test_installed_plugins_are_asked_and_broken_ones_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _install(tmp_path, _CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    async with ToyUpstream() as toy, serve(make_settings(toy, more=ADMIN)) as product:
        assert await compact_manually(product, toy) == ["pivot", "pivot"]
        await wait_until(lambda: "hook session_start asked: ValueError" in caplog.text)
    assert b"Trigger was manual" in toy.summaries[0].body and b"not a list" not in toy.summaries[0].body
    assert "hook missing cannot be loaded: AttributeError" in caplog.text
    assert "hook pre_compact failing: OSError" in caplog.text and "secret" not in caplog.text
    assert "hook pre_compact wrong: " in caplog.text
