"""Notices when a settings file has changed, or a file that it names by `${file:…}`.

Contents are compared, once a second. So it does not matter how a file is replaced: in place, by a rename, or
by another target of a link above it, as Kubernetes replaces a ConfigMap or a Secret.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from gateway.settings.document import MAX_FILE_BYTES, list_files

_LOOK_SECONDS: Final = 1.0

# By path; None for a file that cannot be read.
_Contents = tuple[tuple[Path, bytes | None], ...]


class SettingsWatcher:
    """To be made before the settings are loaded, so that a change in between is seen."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _read_contents(path)

    async def run(
        self,
        request: Callable[[], None],
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Calls `request` after each change, until cancelled.

        Not before two looks in a row have found the same: a file may be half written. pause: between looks;
        None: a second.
        """
        pause = pause or partial(asyncio.sleep, _LOOK_SECONDS)
        latest = self._seen
        while True:
            await pause()
            found = await asyncio.to_thread(_read_contents, self._path)
            if found == latest and found != self._seen:
                self._seen = found
                request()
            latest = found


def _read_contents(path: Path) -> _Contents:
    return tuple(_hash_files(list_files(path)))


def _hash_files(paths: tuple[Path, ...]) -> Iterator[tuple[Path, bytes | None]]:
    for path in paths:
        try:
            with path.open("rb") as file:
                yield path, hashlib.sha256(file.read(MAX_FILE_BYTES + 1)).digest()
        except (OSError, ValueError):
            yield path, None
