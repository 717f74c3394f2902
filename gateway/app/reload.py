"""New settings for a running gateway: when they are loaded, what holds at once, and what after a restart.

Names keys and sections, never values. Settings that cannot be used change nothing: the log says what is wrong
with them, as `refold check` does.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Final

from gateway.http.failures import describe_loop
from gateway.settings import Problem, Settings, SettingsError
from gateway.settings.files import MAX_FILE_BYTES, list_files
from gateway.store.address import make_store
from gateway.store.interface import StoreError

# Operators know this name (docs/troubleshooting.md).
log = logging.getLogger("gateway.reload")

# Bound to a port, opened or sized once, when the process starts. An empty tuple stands for a whole section.
FIXED: Final[Mapping[str, tuple[str, ...]]] = {
    "listen": ("host", "port", "max_body_bytes"),
    "admin": ("host", "port"),
    "store": (),
    "traces": (),
    "retention": (),
    "cache": (),
    "bounds": (),
}
# What the file does not name.
_DERIVED: Final = frozenset({"warnings", "model_origins"})
_LOOK_SECONDS: Final = 1.0

# By path; None for a file that cannot be read.
_Contents = dict[Path, bytes | None]


@dataclass(frozen=True, kw_only=True)
class Change:
    # To run with from now on. Equal to those before in everything that is fixed.
    settings: Settings
    # The sections that have changed, as the file names them.
    sections: tuple[str, ...]
    # The keys whose new values have to wait for the next start.
    postponed: tuple[str, ...]


def find_change(running: Settings, loaded: Settings) -> Change:
    settings, postponed = loaded, list[str]()
    for section, keys in FIXED.items():
        before, after = getattr(running, section), getattr(settings, section)
        if before == after:
            continue
        if is_dataclass(before):
            fixed = {key: getattr(before, key) for key in keys or [each.name for each in fields(before)]}
            postponed += [f"{section}.{key}" for key in fixed if fixed[key] != getattr(after, key)]
            settings = replace(settings, **{section: replace(after, **fixed)})
        else:
            postponed.append(section)
            settings = replace(settings, **{section: before})
    if running.admin.token is not None and settings.admin.token is None:
        # The admin port and several workers change over one after the other: in between, one that does not
        # ask for the token any more must not show what another one shows to those who have it.
        postponed.append("admin.token")
        kept = replace(settings.admin, token=running.admin.token)
        settings = replace(settings, admin=kept)
    names = (each.name for each in fields(Settings) if each.name not in _DERIVED)
    sections = (name for name in names if getattr(running, name) != getattr(settings, name))
    return Change(settings=settings, sections=tuple(sections), postponed=tuple(postponed))


async def check_change(change: Change, loaded: Settings, port: int) -> None:
    """port: the data port of the running gateway.

    Raises SettingsError or StoreError if it cannot use them.
    """
    loop = await asyncio.to_thread(describe_loop, loaded.upstreams.values(), loaded.listen, port)
    if loop is not None:
        raise SettingsError([Problem("settings", loop)])
    if "store" in change.postponed:
        # The next start must not be the first to find out that there is no such store.
        make_store(loaded.store)


def log_change(change: Change) -> None:
    if change.sections:
        log.info("settings reloaded: %s", ", ".join(change.sections))
    elif not change.postponed:
        log.info("settings reloaded: nothing has changed")
    if change.postponed:
        log.warning("these settings hold from the next start on: %s", ", ".join(change.postponed))
    for problem in change.settings.warnings:
        log.warning("settings: %s", problem)


async def run_reloads(
    load: Callable[[], Settings],
    apply: Callable[[Settings], Awaitable[None]],
    wanted: asyncio.Event,
    count: Callable[[bool], None],
) -> None:
    """Until cancelled. What was asked for before is done first.

    load: raises SettingsError with every problem; runs in a thread. apply: has the gateway use settings.
    wanted: set to ask for a reload. If it is set during one, there is one more after it: the file may have
    changed since it was read. count: told of each, and whether it has failed.
    """
    while True:
        await wanted.wait()
        wanted.clear()
        has_failed = True
        try:
            await apply(await asyncio.to_thread(load))
            has_failed = False
        except (SettingsError, StoreError, OSError) as error:
            log.error("settings not reloaded, the earlier ones stay:%s", _render_block(str(error)))
        except Exception:
            # The edge: a mistake of ours must not end later reloads.
            log.exception("settings not reloaded, the earlier ones stay")
        count(has_failed)


def _render_block(text: str) -> str:
    """One problem in the same line, several in lines of their own."""
    lines = text.splitlines()
    return f" {text}" if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)


class SettingsWatcher:
    """Notices when a settings file has changed, or a file that it names by `${file:…}`.

    Contents are compared, once a second. So it does not matter how a file is replaced: in place, by a rename,
    or by another target of a link above it, as Kubernetes replaces a ConfigMap or a Secret. To be made before
    the settings are loaded, so that a change in between is seen.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _read_contents(path)

    async def run(self, request: Callable[[], None]) -> None:
        """Calls `request` after each change, until cancelled.

        Not before two looks in a row have found the same: a file may be half written.
        """
        latest = self._seen
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            found = await asyncio.to_thread(_read_contents, self._path)
            if found == latest and found != self._seen:
                self._seen = found
                request()
            latest = found


def _read_contents(path: Path) -> _Contents:
    contents: dict[Path, bytes | None] = {}
    for each in list_files(path):
        try:
            with each.open("rb") as file:
                contents[each] = hashlib.sha256(file.read(MAX_FILE_BYTES + 1)).digest()
        except (OSError, ValueError):
            contents[each] = None
    return contents
