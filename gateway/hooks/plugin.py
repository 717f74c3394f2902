"""Hooks in Python, which installed packages name under the entry point group `gateway.hooks`.

A hook is a module or an object with functions `pre_compact(before)` or `session_start(after)`, plain or
async. They get the values of `gateway.hooks`. `pre_compact` returns a `HookReply`, a dictionary of its
fields, or None.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import msgspec

from gateway.core.errors import HookFailed
from gateway.hooks import HookReply, PreCompact, SessionStart

log = logging.getLogger("gateway.hooks")

GROUP: Final = "gateway.hooks"
# A summary takes seconds, and a client may wait for it.
_TIMEOUT_SECONDS: Final = 10.0


class Plugin:
    def __init__(self, name: str, plugged: object, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self.name = name
        self._plugged: Any = plugged
        self._timeout_seconds = timeout_seconds

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
            async with asyncio.timeout(self._timeout_seconds):
                # Calling an async function runs nothing of it. In a thread, what it returns would be lost if
                # the time ended just then.
                is_async = inspect.iscoroutinefunction(function)
                result = function(value) if is_async else await asyncio.to_thread(function, value)
                return await result if inspect.isawaitable(result) else result
        except Exception as error:
            raise HookFailed(type(error).__name__) from error


def load_plugins() -> list[Plugin]:
    """All installed hooks by name. One that cannot be loaded is left out and logged."""
    loaded = [_load(entry) for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]
    return [plugin for plugin in loaded if plugin is not None]


def _load(entry: EntryPoint) -> Plugin | None:
    try:
        return Plugin(entry.name, entry.load())
    except Exception as error:  # noqa: BLE001 - code of another package
        log.warning("hook %s cannot be loaded: %s", entry.name, type(error).__name__)
        return None
