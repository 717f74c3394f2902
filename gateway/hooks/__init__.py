"""Hooks are asked before a summary (`pre_compact`) and told after a compaction (`session_start`).

A hook gets ids, numbers and the instructions that a person gave, never the conversation. Late, failed or
unparsable hooks are ignored and logged.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from gateway.core.compaction.request import CompactionReason, CompactionTrigger
from gateway.core.errors import HookFailed
from gateway.logs.fields import name_fields
from gateway.reporting.events import Bus, SessionCompacted

log = logging.getLogger("gateway.hooks")


class PreCompact(msgspec.Struct, frozen=True, kw_only=True):
    """Before a summary is made. custom_instructions: None unless given (docs/sources.md, 003)."""

    hook: Literal["pre_compact"] = "pre_compact"
    trigger: CompactionTrigger
    reason: CompactionReason
    custom_instructions: str | None
    conversation: str
    tenant: str
    pre_tokens: int


class SessionStart(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation goes on after a summary or a digest."""

    hook: Literal["session_start"] = "session_start"
    source: Literal["compact"] = "compact"
    trigger: CompactionTrigger
    reason: CompactionReason
    conversation: str
    tenant: str
    pre_tokens: int


class HookReply(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a `pre_compact` hook. All fields are optional, and unknown ones are ignored.

    veto: do not compact. prompt: replaces the prompt. instructions: replace the custom instructions.
    context: lines to add to them.
    """

    veto: bool = False
    prompt: str | None = None
    instructions: str | None = None
    context: tuple[str, ...] = ()


class Hook(Protocol):
    """One webhook or plugin. `name` is for the log."""

    name: str

    async def ask(self, before: PreCompact) -> HookReply:
        """Raises HookFailed."""

    async def tell(self, after: SessionStart) -> None:
        """Raises HookFailed."""


class Hooks:
    def __init__(self, pre_compact: Sequence[Hook], session_start: Sequence[Hook]) -> None:
        self._pre_compact = pre_compact
        self._session_start = session_start

    async def ask(self, before: PreCompact) -> HookReply:
        """Asks one hook after the other. Each gets the instructions that the one before it left. After a veto
        no further hook is asked.
        """
        prompt, context = None, list[str]()
        for hook in self._pre_compact:
            try:
                reply = await hook.ask(before)
            except HookFailed as error:
                log.warning("hook pre_compact %s: %s", hook.name, error)
                continue
            if reply.veto:
                ids = name_fields(conversation=before.conversation, tenant=before.tenant)
                log.info(
                    "hook pre_compact %s: veto conversation=%s", hook.name, before.conversation, extra=ids
                )
                return reply
            prompt = reply.prompt or prompt
            context += reply.context
            if reply.instructions is not None:
                before = msgspec.structs.replace(before, custom_instructions=reply.instructions or None)
        return HookReply(prompt=prompt, instructions=before.custom_instructions, context=tuple(context))

    async def tell(self, event: SessionCompacted) -> None:
        after = SessionStart(
            trigger=event.trigger,
            reason=event.reason,
            conversation=event.session_id,
            tenant=event.tenant,
            pre_tokens=event.pre_tokens,
        )
        for hook in self._session_start:
            try:
                await hook.tell(after)
            except HookFailed as error:
                log.warning("hook session_start %s: %s", hook.name, error)


async def listen(bus: Bus, find_hooks: Callable[[], Hooks]) -> None:
    """Tells the hooks about every compaction in turn, until cancelled. No request waits for it.

    find_hooks: those of the settings that hold now.
    """
    with bus.subscribe() as subscription:
        while True:
            event = await subscription.next()
            if isinstance(event, SessionCompacted):
                await find_hooks().tell(event)
