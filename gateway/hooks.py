"""Hooks are asked before a summary (`pre_compact`) and told after a compaction (`session_start`).

A hook gets ids, numbers and the instructions that a person gave, never the conversation. Late, failed or
unparsable hooks are ignored and logged.
"""

import asyncio
import hashlib
import hmac
import inspect
import logging
import time
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

import msgspec

from gateway.core.compaction.request import CompactionReason, CompactionTrigger
from gateway.core.errors import HookFailed
from gateway.headers import X_GATEWAY_SIGNATURE, X_GATEWAY_TIMESTAMP
from gateway.http.client import Client, OwnCall
from gateway.http.failures import CALL_ERRORS, describe_failure
from gateway.logs.fields import name_fields
from gateway.reporting.events import Bus, SessionCompacted
from gateway.settings import HookTarget
from gateway.wire.content_encoding import decode_body

log = logging.getLogger("gateway.hooks")

# Of installed packages.
_ENTRY_POINTS: Final = "gateway.hooks"
# A summary takes seconds, and a client may wait for it.
_PLUGIN_SECONDS: Final = 10.0
_MAX_RESPONSE_BYTES: Final = 1 << 16


class SessionStart(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation goes on after a summary or a digest."""

    hook: Literal["session_start"] = "session_start"
    source: Literal["compact"] = "compact"
    trigger: CompactionTrigger
    reason: CompactionReason
    conversation: str
    tenant: str
    pre_tokens: int


class PreCompact(msgspec.Struct, frozen=True, kw_only=True):
    """Before a summary is made. custom_instructions: None unless given (docs/sources.md, 003)."""

    hook: Literal["pre_compact"] = "pre_compact"
    trigger: CompactionTrigger
    reason: CompactionReason
    custom_instructions: str | None
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
    """One webhook or plugin. `name` is for the log. Both methods raise HookFailed."""

    name: str

    async def ask(self, before: PreCompact) -> HookReply: ...

    async def tell(self, after: SessionStart) -> None: ...


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


class Webhook:
    """A hook behind a URL: one signed POST, a short response, no redirects and no retry.

    Signature: `x-gateway-signature: sha256=HEX`, HMAC-SHA256 with the secret over `x-gateway-timestamp`, a
    dot, and the body. name: the host alone, because the path may hold a secret.
    """

    def __init__(self, client: Client, target: HookTarget) -> None:
        self.name = urlsplit(target.url).netloc
        self._client = client
        self._target = target

    async def ask(self, before: PreCompact) -> HookReply:
        """An empty response is an empty reply."""
        body = await self._post(msgspec.json.encode(before))
        try:
            return msgspec.json.decode(body, type=HookReply) if body.strip() else HookReply()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise HookFailed("response not understood") from None

    async def tell(self, after: SessionStart) -> None:
        await self._post(msgspec.json.encode(after))

    async def _post(self, body: bytes) -> bytes:
        target = self._target
        headers = {"Content-Type": "application/json", **self._sign(body)}
        call = OwnCall(None, "POST", target.url, headers.items(), body)
        try:
            found = await self._client.fetch(call, target.timeout_seconds, _MAX_RESPONSE_BYTES)
            if not 200 <= found.status < 300:
                raise HookFailed(f"status {found.status}")
            if found.body is None:
                raise HookFailed("response too long")
            # Not decoded by the library, which has no bound for what a few bytes decode to.
            return decode_body(found.body, found.headers.get("content-encoding", ""), _MAX_RESPONSE_BYTES)
        except CALL_ERRORS as error:
            raise HookFailed(describe_failure(error, target.url)) from error

    def _sign(self, body: bytes) -> dict[str, str]:
        timestamp = str(int(time.time()))
        headers = {X_GATEWAY_TIMESTAMP: timestamp}
        if self._target.secret is not None:
            key = self._target.secret.get_secret_value().encode()
            signature = hmac.new(key, f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
            headers[X_GATEWAY_SIGNATURE] = f"sha256={signature}"
        return headers


class Plugin:
    """A hook in Python: a module or an object with functions `pre_compact(before)` or `session_start(after)`,
    plain or async. They get the values of this module. `pre_compact` returns a `HookReply`, a dictionary of
    its fields, or None.
    """

    def __init__(self, name: str, plugged: object) -> None:
        self.name = name
        self._plugged: Any = plugged

    def has(self, function: str) -> bool:
        return callable(getattr(self._plugged, function, None))

    async def ask(self, before: PreCompact) -> HookReply:
        result = await self._call(self._plugged.pre_compact, before)
        try:
            return result if isinstance(result, HookReply) else msgspec.convert(result or {}, HookReply)
        except msgspec.ValidationError:
            raise HookFailed("response not understood") from None

    async def tell(self, after: SessionStart) -> None:
        await self._call(self._plugged.session_start, after)

    async def _call(self, function: Callable[[Any], Any], value: PreCompact | SessionStart) -> Any:  # noqa: ANN401 - a plugin may return anything
        """A plain function in a thread, because it may block."""
        try:
            async with asyncio.timeout(_PLUGIN_SECONDS):
                # Calling an async function runs nothing of it. In a thread, what it returns would be lost if
                # the time ended just then.
                is_async = inspect.iscoroutinefunction(function)
                result = function(value) if is_async else await asyncio.to_thread(function, value)
                return await result if inspect.isawaitable(result) else result
        except Exception as error:
            raise HookFailed(type(error).__name__) from error


def load_plugins() -> list[Plugin]:
    """All installed hooks by name, under the entry point group `gateway.hooks`. One that cannot be loaded is
    left out and logged.
    """
    found = sorted(entry_points(group=_ENTRY_POINTS), key=lambda entry: entry.name)
    return [plugin for plugin in map(_load, found) if plugin is not None]


def _load(entry: EntryPoint) -> Plugin | None:
    try:
        return Plugin(entry.name, entry.load())
    except Exception as error:  # noqa: BLE001 - code of another package
        log.warning("hook %s cannot be loaded: %s", entry.name, type(error).__name__)
        return None
