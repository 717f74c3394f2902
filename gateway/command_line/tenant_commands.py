"""`refold tenants`: lists the tenants of the settings, and deletes everything of one of them.

This process deletes in the store, which tells all gateways that use it. A gateway with its state in memory is
asked at its admin port.
"""

import argparse
import asyncio
import os
import re
import sys
from typing import Final

from gateway.admin.operations import PURGE_PATH
from gateway.command_line.admin_client import DELETE_SECONDS, AdminClient
from gateway.command_line.console import render_json
from gateway.command_line.options import load_chosen_settings
from gateway.command_line.process_setup import complain
from gateway.originals.archive import Removals
from gateway.originals.search import make_search
from gateway.purge import Purge, PurgeCount
from gateway.settings import Settings
from gateway.settings.show import list_tenants
from gateway.settings.validate import find_nearest
from gateway.store.address import find_folder
from gateway.store.keys import make_tag
from gateway.store.redis_address import is_redis
from gateway.store.stores import make_stores
from gateway.tenants import make_tenant_id

# What a caller without a configured tenant is, by the SHA-256 of its credential.
_KEY_OWNER: Final = re.compile(r"key:[0-9a-f]{64}")
_WRONG_USE: Final = 2


def run_tenants(options: argparse.Namespace) -> int:
    """The exit status. Raises SettingsError, StoreError, and AdminError for a store in memory."""
    settings = load_chosen_settings(options, os.environ)
    if options.action == "purge":
        return _purge_tenant(settings, options)
    if options.json:
        print(render_json({"tenants": list_tenants(settings)}))
    else:
        nobody = "no tenants in the settings: each caller key is a tenant of its own"
        print("\n".join(tenant.name for tenant in settings.tenants) or nobody)
    return 0


def _purge_tenant(settings: Settings, options: argparse.Namespace) -> int:
    owner = _find_owner(settings, options.name, is_removed=options.removed)
    if owner is None:
        complain(_describe_unknown(settings, options.name))
        return _WRONG_USE
    question = (
        f"This deletes all summaries, originals and other records of {options.name}, and the folders that "
        "were set aside as damaged.\nType the name again to go on: "
    )
    if not options.yes and ask_person(question).strip() != options.name:
        complain("nothing was deleted")
        return 1
    count = _purge(settings, make_tag(owner))
    print(
        f"deleted of {options.name}: {count.state} records of state, {count.originals} of originals, "
        f"{count.named} of named responses",
        file=sys.stderr,
    )
    return 0


def ask_person(question: str) -> str:
    """The answer; empty without a terminal."""
    if not sys.stdin.isatty():
        return ""
    try:
        return input(question)
    except EOFError:
        return ""


def _find_owner(settings: Settings, name: str, *, is_removed: bool) -> str | None:
    if _KEY_OWNER.fullmatch(name):
        return name
    is_known = any(tenant.name == name for tenant in settings.tenants)
    return make_tenant_id(name) if is_known or is_removed else None


def _describe_unknown(settings: Settings, name: str) -> str:
    nearest = find_nearest(name, [tenant.name for tenant in settings.tenants])
    hint = f"; the nearest is '{nearest}'" if nearest else ""
    return (
        f"the settings name no tenant {name[:80]!r}{hint}. For one that they named before, add "
        "--removed. A caller without a configured tenant is key:HASH, with all 64 digits."
    )


def _purge(settings: Settings, tag: str) -> PurgeCount:
    """Raises StoreError and AdminError."""
    folder = find_folder(settings.store)
    if folder is None and not is_redis(settings.store):
        with AdminClient(settings) as client:
            return client.post(PURGE_PATH, PurgeCount, {"tag": tag}, DELETE_SECONDS)
    if folder is not None and not folder.exists():
        return PurgeCount()
    return asyncio.run(_purge_stores(settings, tag))


async def _purge_stores(settings: Settings, tag: str) -> PurgeCount:
    retention = settings.retention
    stores = make_stores(
        settings.store,
        originals_bytes=retention.originals_bytes,
        named_bytes=retention.named_bytes,
        keep_seconds=retention.seconds,
    )
    await stores.open()
    try:
        removals = Removals(stores.state, retention.seconds)
        return await Purge(stores, make_search(settings, removals, stores.originals)).run(tag)
    finally:
        await stores.close()
