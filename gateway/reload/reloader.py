"""Loads the settings again when it is asked to, one reload after the other.

Settings that cannot be used change nothing: the log says what is wrong with them, as `refold check` does.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.settings import Settings, SettingsError
from gateway.store.interface import StoreError

log = logging.getLogger("gateway.reload")


class NoteReload(Protocol):
    def __call__(self, *, has_failed: bool) -> None: ...


class Reloader:
    """load: raises SettingsError with every problem; runs in a thread. apply: has the gateway use settings.

    wanted: set to ask for a reload. If it is set during one, there is one more after it: the file may have
    changed since it was read. note: told how each ended.
    """

    def __init__(
        self,
        load: Callable[[], Settings],
        apply: Callable[[Settings], Awaitable[None]],
        wanted: asyncio.Event,
        note: NoteReload,
    ) -> None:
        self._load = load
        self._apply = apply
        self._wanted = wanted
        self._note = note

    async def run(self) -> None:
        """Until cancelled. What was asked for before is done first."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._note(has_failed=not await self._reload())

    async def _reload(self) -> bool:
        try:
            await self._apply(await asyncio.to_thread(self._load))
        except (SettingsError, StoreError, OSError) as error:
            log.error("settings not reloaded, the earlier ones stay:%s", _render_block(str(error)))
        except Exception:
            # The edge: a mistake of ours must not end later reloads.
            log.exception("settings not reloaded, the earlier ones stay")
        else:
            return True
        return False


def _render_block(text: str) -> str:
    """One problem in the same line, several in lines of their own."""
    lines = text.splitlines()
    return f" {text}" if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
