"""What of reloaded settings holds at once, and what holds from the next start on.

Names keys and sections, never values.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from gateway.http.failures import describe_loop
from gateway.settings import Problem, Settings, SettingsError
from gateway.settings.section import Section
from gateway.store.address import make_store

log = logging.getLogger("gateway.reload")

# Bound to a port, opened or sized once, when the process starts. An empty tuple stands for a whole section.
FIXED: Final[Mapping[str, tuple[str, ...]]] = {
    "listen": ("host", "port", "max_body_bytes"),
    "admin": ("host", "port"),
    "store": (),
    "traces": (),
    "retention": (),
    "embeddings": (),
    "cache": (),
    "bounds": (),
}
# What the file does not name.
_DERIVED: Final = frozenset({"warnings", "model_origins"})


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
        if isinstance(before, Section):
            fixed = {key: getattr(before, key) for key in keys or type(before).model_fields}
            postponed += [f"{section}.{key}" for key in fixed if fixed[key] != getattr(after, key)]
            settings = replace(settings, **{section: after.model_copy(update=fixed)})
        else:
            postponed.append(section)
            settings = replace(settings, **{section: before})
    if running.admin.token is not None and settings.admin.token is None:
        # The admin port and several workers change over one after the other: in between, one that does not
        # ask for the token any more must not show what another one shows to those who have it.
        postponed.append("admin.token")
        kept = settings.admin.model_copy(update={"token": running.admin.token})
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
