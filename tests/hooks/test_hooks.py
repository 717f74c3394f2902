import asyncio

import pytest

from gateway.core.compaction.request import CompactionReason
from gateway.core.errors import HookFailed
from gateway.hooks import HookReply, Hooks, PreCompact, SessionStart, listen
from gateway.reporting.events import Bus, Pruned, SessionCompacted

_BEFORE = PreCompact(
    trigger="auto",
    reason=CompactionReason.SOFT_THRESHOLD,
    custom_instructions="Be brief.",
    conversation="c",
    tenant="t",
    pre_tokens=1,
)
_COMPACTED = SessionCompacted(
    session_id="c",
    tenant="t",
    kind="summary",
    trigger="manual",
    reason=CompactionReason.MANUAL,
    pre_tokens=9,
    post_tokens=5,
    covers=3,
)


class ToyHook:
    """Records what it is asked and told. reply: None fails."""

    def __init__(self, name: str, reply: HookReply | None) -> None:
        self.name = name
        self.reply = reply
        self.asked: list[PreCompact] = []
        self.told: list[SessionStart] = []

    async def ask(self, before: PreCompact) -> HookReply:
        self.asked.append(before)
        if self.reply is None:
            raise HookFailed("no reply")
        return self.reply

    async def tell(self, after: SessionStart) -> None:
        self.told.append(after)
        if self.reply is None:
            raise HookFailed("no reply")


async def test_without_hooks_the_instructions_stay() -> None:
    assert await Hooks([], []).ask(_BEFORE) == HookReply(instructions="Be brief.")


async def test_the_replies_of_all_hooks_are_joined_and_each_sees_the_instructions_before_it() -> None:
    one = ToyHook("one", HookReply(context=("a",), instructions="Keep names.", prompt="First."))
    two = ToyHook("two", HookReply(context=("b", "c"), prompt="Second."))
    three = ToyHook("three", HookReply(instructions=""))
    reply = await Hooks([one, two, three], []).ask(_BEFORE)
    assert reply == HookReply(context=("a", "b", "c"), instructions=None, prompt="Second.")
    asked = [hook.asked[0].custom_instructions for hook in (one, two, three)]
    assert asked == ["Be brief.", "Keep names.", "Keep names."]


async def test_after_a_veto_no_further_hook_is_asked() -> None:
    veto, later = ToyHook("veto", HookReply(veto=True)), ToyHook("later", HookReply())
    assert (await Hooks([veto, later], []).ask(_BEFORE)).veto
    assert later.asked == []


async def test_a_hook_that_fails_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    failing, other = ToyHook("failing", None), ToyHook("other", HookReply(prompt="p"))
    reply = await Hooks([failing, other], []).ask(_BEFORE)
    assert reply == HookReply(prompt="p", instructions="Be brief.")
    assert "hook pre_compact failing: no reply" in caplog.text


async def test_every_compaction_is_told_to_all_hooks_even_after_one_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus, failing, other = Bus(), ToyHook("failing", None), ToyHook("other", HookReply())
    listening = asyncio.create_task(listen(bus, lambda: Hooks([], [failing, other])))
    await asyncio.sleep(0)
    bus.publish(Pruned(session_id="c", tenant="t", marks=1, saved_tokens=1))
    bus.publish(_COMPACTED)
    async with asyncio.timeout(30):
        while not other.told:
            await asyncio.sleep(0)
    listening.cancel()
    expected = SessionStart(
        trigger="manual", reason=CompactionReason.MANUAL, conversation="c", tenant="t", pre_tokens=9
    )
    assert failing.told == other.told == [expected]
    assert "hook session_start failing: no reply" in caplog.text


async def test_a_compaction_is_told_to_the_hooks_that_hold_at_that_time() -> None:
    bus, first, second = Bus(), ToyHook("first", None), ToyHook("second", HookReply())
    current = [Hooks([], [])]
    listening = asyncio.create_task(listen(bus, lambda: current[0]))
    await asyncio.sleep(0)
    bus.publish(_COMPACTED)
    await asyncio.sleep(0)
    current[0] = Hooks([], [second])
    bus.publish(_COMPACTED)
    async with asyncio.timeout(30):
        while not second.told:
            await asyncio.sleep(0)
    listening.cancel()
    assert (len(first.told), len(second.told)) == (0, 1)
