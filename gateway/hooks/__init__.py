"""What others have a say in: before a compaction (`pre_compact`) and after it (`session_start`).

A hook gets ids, numbers and the instructions that a person gave, never the conversation. It may be slow,
broken or gone: then it has said nothing, and one log line says so.
"""

import logging
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from gateway.core.compaction.request import CompactionTrigger
from gateway.core.errors import HookFailed
from gateway.reporting.events import Bus, Compacted

log = logging.getLogger("gateway.hooks")


class PreCompact(msgspec.Struct, frozen=True, kw_only=True):
    """Before a summary is asked for. custom_instructions: None where nobody gave any (document 003 §4)."""

    hook: Literal["pre_compact"] = "pre_compact"
    trigger: CompactionTrigger
    custom_instructions: str | None
    conversation: str
    tenant: str
    pre_tokens: int


class SessionStart(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation goes on behind a summary or a digest."""

    hook: Literal["session_start"] = "session_start"
    source: Literal["compact"] = "compact"
    trigger: CompactionTrigger
    conversation: str
    tenant: str
    pre_tokens: int


class Say(msgspec.Struct, frozen=True, kw_only=True):
    """What a `pre_compact` hook may answer; all of it optional, anything else is ignored.

    veto: do not compact. prompt: in place of the instruction. instructions: in place of the custom ones.
    context: lines to add to them.
    """

    veto: bool = False
    prompt: str | None = None
    instructions: str | None = None
    context: tuple[str, ...] = ()


class Hook(Protocol):
    """One listener. `name` stands in the log."""

    name: str

    async def ask(self, before: PreCompact) -> Say:
        """Raises HookFailed."""

    async def tell(self, after: SessionStart) -> None:
        """Raises HookFailed."""


class Hooks:
    def __init__(self, pre_compact: Sequence[Hook], session_start: Sequence[Hook]) -> None:
        self._pre_compact = pre_compact
        self._session_start = session_start

    async def ask(self, before: PreCompact) -> Say:
        """One after the other: each sees the instructions that those before it left. A veto ends it."""
        prompt, context = None, list[str]()
        for hook in self._pre_compact:
            try:
                said = await hook.ask(before)
            except HookFailed as error:
                log.warning("hook pre_compact %s: %s", hook.name, error)
                continue
            if said.veto:
                log.info("hook pre_compact %s: veto conversation=%s", hook.name, before.conversation)
                return said
            prompt = said.prompt or prompt
            context += said.context
            if said.instructions is not None:
                before = msgspec.structs.replace(before, custom_instructions=said.instructions or None)
        return Say(prompt=prompt, instructions=before.custom_instructions, context=tuple(context))

    async def listen(self, bus: Bus) -> None:
        """Tells of every compaction, one after the other, until cancelled. Nobody waits for it."""
        if not self._session_start:
            return
        with bus.subscribe() as subscription:
            while True:
                event = await subscription.next()
                if isinstance(event, Compacted):
                    await self._tell(event)

    async def _tell(self, event: Compacted) -> None:
        after = SessionStart(
            trigger=event.trigger,
            conversation=event.session_id,
            tenant=event.tenant,
            pre_tokens=event.pre_tokens,
        )
        for hook in self._session_start:
            try:
                await hook.tell(after)
            except HookFailed as error:
                log.warning("hook session_start %s: %s", hook.name, error)
