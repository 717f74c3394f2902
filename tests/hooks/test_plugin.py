"""Hooks that are installed as Python packages."""

import asyncio
from pathlib import Path

import pytest

from gateway.core.compaction.request import CompactionReason
from gateway.core.errors import HookFailed
from gateway.hooks import HookReply, PreCompact, SessionStart
from gateway.hooks.plugin import Plugin, load_plugins
from tests.hooks.listener import ADMIN, compact_manually
from tests.toy.gateway import make_settings, running_gateway
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream

_REASON = CompactionReason.SOFT_THRESHOLD
_BEFORE = PreCompact(
    trigger="auto", reason=_REASON, custom_instructions=None, conversation="c", tenant="t", pre_tokens=1
)
_AFTER = SessionStart(trigger="auto", reason=_REASON, conversation="c", tenant="t", pre_tokens=1)


def _install(folder: Path, code: str) -> None:
    (folder / "toy_plugged_hook.py").write_text(code, "utf-8")
    info = folder / "toy_plugged_hook-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-plugged-hook\nVersion: 1.0\n", "utf-8")
    entries = "[gateway.hooks]\nbroken = toy_plugged_hook:missing\ntoy = toy_plugged_hook:hook\n"
    (info / "entry_points.txt").write_text(entries, "utf-8")


@pytest.mark.system(8)
async def test_installed_plugins_are_asked_and_broken_ones_are_left_out(
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
    async with ToyUpstream() as toy, running_gateway(make_settings(toy, more=ADMIN)) as gateway:
        assert await compact_manually(gateway, toy) == ["pivot", "pivot"]
        await wait_until(lambda: "hook session_start toy: ValueError" in caplog.text)
    assert b"Trigger was manual" in toy.summaries[0].body
    assert "hook broken cannot be loaded: AttributeError" in caplog.text
    assert [plugin.name for plugin in load_plugins()] == ["toy"]


class Hook:
    """Plain functions, as a module has them."""

    def __init__(self, result: object) -> None:
        self.result = result
        self.told: list[SessionStart] = []

    def pre_compact(self, before: PreCompact) -> object:
        return self.result

    def session_start(self, after: SessionStart) -> None:
        self.told.append(after)


@pytest.mark.parametrize(
    ("result", "reply"),
    [
        (None, HookReply()),
        ({}, HookReply()),
        ({"veto": True}, HookReply(veto=True)),
        ({"context": ["a"], "prompt": "p", "more": 1}, HookReply(context=("a",), prompt="p")),
        (HookReply(instructions="i"), HookReply(instructions="i")),
    ],
)
async def test_a_plugin_returns_a_reply_a_dictionary_or_none(result: object, reply: HookReply) -> None:
    assert await Plugin("p", Hook(result)).ask(_BEFORE) == reply


async def test_a_plugin_is_told_of_a_session_start() -> None:
    hook = Hook(None)
    await Plugin("p", hook).tell(_AFTER)
    assert hook.told == [_AFTER]


async def test_a_plugin_has_the_functions_that_it_defines() -> None:
    plugin = Plugin("p", Hook(None))
    assert plugin.has("pre_compact") and plugin.has("session_start") and not plugin.has("told")


async def test_a_slow_a_failing_and_a_wrong_plugin_have_failed() -> None:
    class Slow:
        async def pre_compact(self, before: PreCompact) -> None:
            await asyncio.Event().wait()

    class Failing:
        def pre_compact(self, before: PreCompact) -> None:
            raise OSError("secret")

    with pytest.raises(HookFailed, match="TimeoutError"):
        await Plugin("slow", Slow(), timeout_seconds=0.01).ask(_BEFORE)
    with pytest.raises(HookFailed, match="OSError"):
        await Plugin("failing", Failing()).ask(_BEFORE)
    with pytest.raises(HookFailed, match="response not understood"):
        await Plugin("wrong", Hook({"context": "not a list"})).ask(_BEFORE)
