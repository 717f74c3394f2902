"""Webhooks over real sockets."""

import hashlib
import hmac
import json

import pytest
from aiohttp import web

from tests.hooks.listener import Responding, compact_manually, hook_settings, listening, responding
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import run_session, wait_until
from tests.toy.summarising import SOURCE_PROMPT
from tests.toy.upstream import ToyUpstream


@pytest.mark.system(14)
async def test_a_webhook_gets_the_documented_fields_and_a_signature() -> None:
    async with (
        ToyUpstream() as toy,
        listening(responding()) as hook,
        running_gateway(make_settings(toy, more=hook_settings(hook.port))) as gateway,
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
        running_gateway(make_settings(toy, more=hook_settings(one.port, two.port))) as gateway,
    ):
        assert await compact_manually(gateway, toy, "Keep names.") == ["pivot", "pivot"]
    assert two.heard[0]["custom_instructions"] == "Keep colours."
    asked = json.loads(toy.summaries[0].body)["messages"][-1]["content"]
    # The prompt replaces the usual one; the rest follows it.
    assert f"Be brief. {SOURCE_PROMPT}\n\nKeep colours.\n\nBranch: main\nBuild: red\n\nWrite at most" in asked
    assert "Keep names." not in asked


async def test_after_a_veto_of_a_manual_compaction_no_model_is_called() -> None:
    async with (
        ToyUpstream() as toy,
        listening(responding(veto=True)) as hook,
        running_gateway(make_settings(toy, more=hook_settings(hook.port))) as gateway,
    ):
        assert await compact_manually(gateway, toy) == ["passthrough", "passthrough"]
    assert toy.summaries == [] and len(hook.heard) == 1


async def test_after_a_veto_a_digest_is_made_only_when_a_request_exceeds_the_window() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        listening(responding(veto=True)) as hook,
        running_gateway(make_settings(toy, more=hook_settings(hook.port))) as gateway,
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
        running_gateway(make_settings(toy, more=hook_settings(hook.port, timeout=0.3))) as gateway,
    ):
        assert await compact_manually(gateway, toy) == ["pivot", "pivot"]
    assert len(hook.bodies) == 1 and logged in caplog.text
    # The path may hold a secret, too.
    assert "s3cret" not in caplog.text and "key=1" not in caplog.text


async def test_an_unreachable_webhook_is_ignored() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=hook_settings(1))) as gateway:
        assert await compact_manually(gateway, toy) == ["pivot", "pivot"]


@pytest.mark.system(14)
async def test_after_a_compaction_the_webhook_is_told_of_the_session_start() -> None:
    async with (
        ToyUpstream() as toy,
        listening(responding()) as hook,
        running_gateway(make_settings(toy, more=hook_settings(hook.port, name="session_start"))) as gateway,
    ):
        await compact_manually(gateway, toy)
        await wait_until(lambda: bool(hook.bodies))
    (heard,) = hook.heard
    assert (heard["hook"], heard["source"], heard["trigger"]) == ("session_start", "compact", "manual")
    assert heard["pre_tokens"] > 5_000
