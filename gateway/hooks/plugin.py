"""A hook in Python: whatever an installed package names under the entry point group `gateway.hooks`.

A module or an object with functions `pre_compact(before)` or `session_start(after)`, plain or async. They get
the values of `gateway.hooks`; `pre_compact` gives back a `Say`, a dictionary of its fields, or None.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import msgspec

from gateway.core.errors import HookFailed
from gateway.hooks import PreCompact, Say, SessionStart

log = logging.getLogger("gateway.hooks")

GROUP: Final = "gateway.hooks"
# Summaries take seconds; a hook that takes longer holds a client up.
_PATIENCE_SECONDS: Final = 10.0


class Plugin:
    def __init__(self, name: str, plugged: object, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self.name = name
        self._plugged: Any = plugged
        self._patience_seconds = patience_seconds

    def has(self, function: str) -> bool:
        return callable(getattr(self._plugged, function, None))

    async def ask(self, before: PreCompact) -> Say:
        said = await self._call(self._plugged.pre_compact, before)
        try:
            return said if isinstance(said, Say) else msgspec.convert(said or {}, Say)
        except msgspec.ValidationError:
            raise HookFailed("answer not understood") from None

    async def tell(self, after: SessionStart) -> None:
        await self._call(self._plugged.session_start, after)

    async def _call(self, function: Callable[[Any], Any], value: PreCompact | SessionStart) -> Any:  # noqa: ANN401
        """In a thread, so that a plain function may wait."""
        try:
            async with asyncio.timeout(self._patience_seconds):
                result = await asyncio.to_thread(function, value)
                return await result if inspect.isawaitable(result) else result
        except Exception as error:
            raise HookFailed(type(error).__name__) from error


def load_plugins() -> list[Plugin]:
    """All that are installed. One that cannot be loaded is left out, and one log line says so."""
    loaded = [_load(entry) for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)]
    return [plugin for plugin in loaded if plugin is not None]


def _load(entry: EntryPoint) -> Plugin | None:
    try:
        return Plugin(entry.name, entry.load())
    except Exception as error:  # noqa: BLE001 - somebody else's code
        log.warning("hook %s cannot be loaded: %s", entry.name, type(error).__name__)
        return None
