"""What hooks are told and may say, over real sockets and as installed plugins."""

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

from gateway.hooks import Hooks, PreCompact, Say
from gateway.hooks.plugin import Plugin, load_plugins
from tests.toy.admin_port import ask_to_compact
from tests.toy.agent import Shape, make_session
from tests.toy.gateway import RunningGateway, make_settings, running_gateway
from tests.toy.running import Pace, run_session, wait_until
from tests.toy.summarising import SOURCE_PROMPT
from tests.toy.upstream import ToyUpstream

_ADMIN = "admin: {port: 0}\n"
Answer = Callable[[web.BaseRequest], web.Response]


def say(**fields: object) -> Answer:
    return lambda _: web.json_response(fields)


class Listener:
    """A hook's other end, that remembers what it was sent."""

    def __init__(self, answer: Answer, delay_seconds: float = 0.0) -> None:
        self.answer = answer
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
        return self.answer(request)


@asynccontextmanager
async def listening(answer: Answer, delay_seconds: float = 0.0) -> AsyncIterator[Listener]:
    listener = Listener(answer, delay_seconds)
    runner = web.ServerRunner(web.Server(listener.serve), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    listener.port = runner.addresses[0][1]
    try:
        yield listener
    finally:
        await runner.cleanup()


def hooks(*ports: int, timeout: float = 5, name: str = "pre_compact") -> str:
    targets = [
        f'{{url: "http://127.0.0.1:{port}/hook?key=1", secret: s3cret, timeout_seconds: {timeout}}}'
        for port in ports
    ]
    return f"{_ADMIN}hooks: {{{name}: [{', '.join(targets)}]}}\n"


async def compact_by_hand(gateway: RunningGateway, toy: ToyUpstream, instructions: str = "") -> list[str]:
    """The plans of the two requests after it."""
    session = make_session(14, 3)
    before = await run_session(session, gateway.base_url, toy, pace=Pace(first=0, last=12))
    body = json.dumps({"instructions": instructions}).encode()
    assert (await ask_to_compact(gateway, before.conversation, body))[0] == 202
    await gateway.settle()
    after = await run_session(session, gateway.base_url, toy, pace=Pace(first=12, last=14))
    return [answer.header("x-gateway-plan") or "" for answer in after.answers]


async def test_a_hook_hears_what_its_source_says_and_can_prove_who_sent_it() -> None:
    async with (
        ToyUpstream() as toy,
        listening(say()) as hook,
        running_gateway(make_settings(toy, more=hooks(hook.port))) as gateway,
    ):
        assert await compact_by_hand(gateway, toy, "Keep names.") == ["pivot", "pivot"]
    (heard,) = hook.heard
    assert heard.pop("pre_tokens") > 5_000 and len(heard.pop("conversation")) == 16
    assert heard.pop("tenant").startswith("key:")
    assert heard == {"hook": "pre_compact", "trigger": "manual", "custom_instructions": "Keep names."}
    (headers,) = hook.headers
    signed = headers["X-Gateway-Timestamp"].encode() + b"." + hook.bodies[0]
    assert (
        headers["X-Gateway-Signature"] == f"sha256={hmac.new(b's3cret', signed, hashlib.sha256).hexdigest()}"
    )


async def test_hooks_add_context_change_instructions_and_replace_the_prompt_in_turn() -> None:
    first = say(instructions="Keep colours.", context=["Branch: main"])
    second = say(prompt=f"Be brief. {SOURCE_PROMPT}", context=["Build: red"])
    async with (
        ToyUpstream() as toy,
        listening(first) as one,
        listening(second) as two,
        running_gateway(make_settings(toy, more=hooks(one.port, two.port))) as gateway,
    ):
        assert await compact_by_hand(gateway, toy, "Keep names.") == ["pivot", "pivot"]
    assert two.heard[0]["custom_instructions"] == "Keep colours."
    asked = json.loads(toy.summaries[0].body)["messages"][-1]["content"]
    # The prompt in full, where the usual one goes on.
    assert f"Be brief. {SOURCE_PROMPT}\n\nKeep colours.\n\nBranch: main\nBuild: red\n\nWrite at most" in asked
    assert "Keep names." not in asked


async def test_a_veto_by_hand_stores_nothing_and_calls_nobody() -> None:
    async with (
        ToyUpstream() as toy,
        listening(say(veto=True)) as hook,
        running_gateway(make_settings(toy, more=hooks(hook.port))) as gateway,
    ):
        assert await compact_by_hand(gateway, toy) == ["passthrough", "passthrough"]
    assert toy.summaries == [] and len(hook.heard) == 1


async def test_after_a_veto_a_request_that_no_window_holds_is_digested_and_no_sooner() -> None:
    async with (
        ToyUpstream(window=16_000) as toy,
        listening(say(veto=True)) as hook,
        running_gateway(make_settings(toy, more=hooks(hook.port))) as gateway,
    ):
        run = await run_session(make_session(30, 3), gateway.base_url, toy, Shape(max_tokens=1_000))
    plans = [answer.header("x-gateway-plan") for answer in run.answers]
    assert run.failed == [] and run.refusals == [] and toy.summaries == []
    assert "digest" in plans and {each["trigger"] for each in hook.heard} == {"auto"}
    before = run.outgoing[plans.index("digest") - 1]
    # Past the hard line (12,000) it went on as it was, as long as the window held it.
    assert before.prompt_tokens > 12_000


@pytest.mark.parametrize(
    ("answer", "delay_seconds", "said"),
    [
        (lambda _: web.Response(status=500), 0, "status 500"),
        (lambda _: web.Response(status=307, headers={"Location": "/other"}), 0, "status 307"),
        (lambda _: web.Response(text="veto"), 0, "answer not understood"),
        (say(veto="yes"), 0, "answer not understood"),
        (lambda _: web.Response(text=" " * 70_000), 0, "answer too long"),
        (say(veto=True), 1.0, "TimeoutError"),
    ],
)
async def test_a_hook_that_fails_has_said_nothing(
    answer: Answer, delay_seconds: float, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ToyUpstream() as toy,
        listening(answer, delay_seconds) as hook,
        running_gateway(make_settings(toy, more=hooks(hook.port, timeout=0.3))) as gateway,
    ):
        assert await compact_by_hand(gateway, toy) == ["pivot", "pivot"]
    assert len(hook.bodies) == 1 and said in caplog.text
    # Neither a secret nor a path that may be one.
    assert "s3cret" not in caplog.text and "key=1" not in caplog.text


async def test_a_hook_that_is_gone_has_said_nothing() -> None:
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=hooks(1))) as gateway:
        assert await compact_by_hand(gateway, toy) == ["pivot", "pivot"]


async def test_after_a_compaction_the_session_is_told_to_start_again() -> None:
    async with (
        ToyUpstream() as toy,
        listening(say()) as hook,
        running_gateway(make_settings(toy, more=hooks(hook.port, name="session_start"))) as gateway,
    ):
        await compact_by_hand(gateway, toy)
        await wait_until(lambda: bool(hook.bodies))
    (heard,) = hook.heard
    assert (heard["hook"], heard["source"], heard["trigger"]) == ("session_start", "compact", "manual")
    assert heard["pre_tokens"] > 5_000


def _install(folder: Path, code: str) -> None:
    (folder / "toy_plugged_hook.py").write_text(code, "utf-8")
    info = folder / "toy_plugged_hook-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugged-hook\nVersion: 1.0\n", "utf-8")
    entries = "[gateway.hooks]\nbroken = toy_plugged_hook:missing\ntoy = toy_plugged_hook:hook\n"
    (info / "entry_points.txt").write_text(entries, "utf-8")


async def test_what_is_installed_is_asked_too_and_what_cannot_be_loaded_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code = (
        "class hook:\n"
        "    def pre_compact(before):\n"
        "        return {'context': ['Trigger was ' + before.trigger]}\n"
        "    async def session_start(after):\n"
        "        raise ValueError(after.source)\n"
    )
    _install(tmp_path, code)
    monkeypatch.syspath_prepend(str(tmp_path))
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=_ADMIN)) as gateway:
        assert await compact_by_hand(gateway, toy) == ["pivot", "pivot"]
        await wait_until(lambda: "hook session_start toy: ValueError" in caplog.text)
    assert b"Trigger was manual" in toy.summaries[0].body
    assert "hook broken cannot be loaded: AttributeError" in caplog.text
    assert [plugin.name for plugin in load_plugins()] == ["toy"]


async def test_a_plugin_may_be_slow_or_wrong(caplog: pytest.LogCaptureFixture) -> None:
    class Slow:
        async def pre_compact(self, before: PreCompact) -> None:
            await asyncio.sleep(60)

    class Wrong:
        def pre_compact(self, before: PreCompact) -> dict[str, object]:
            return {"context": "not a list"}

    before = PreCompact(trigger="auto", custom_instructions=None, conversation="c", tenant="t", pre_tokens=1)
    plugins = [Plugin("slow", Slow(), patience_seconds=0.01), Plugin("wrong", Wrong())]
    assert await Hooks(plugins, []).ask(before) == Say()
    assert "slow: TimeoutError" in caplog.text and "wrong: answer not understood" in caplog.text
