"""`refold tenants`: lists the tenants of the settings, and deletes everything of one of them.

This process deletes in the store, which tells all gateways that use it. A gateway with its state in memory is
asked at its admin port.
"""

import argparse
import asyncio
import http.client
import re
import sys
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gateway.admin.operations import PURGE_PATH
from gateway.command_line.health import choose_loopback
from gateway.command_line.options import load_chosen_settings
from gateway.originals.archive import Removals
from gateway.originals.index import make_index
from gateway.purge import Purge, PurgeCount
from gateway.settings import Settings
from gateway.settings.validate import find_nearest
from gateway.store.address import find_folder
from gateway.store.interface import StoreError
from gateway.store.keys import make_tag
from gateway.store.redis_address import is_redis
from gateway.store.stores import make_stores
from gateway.tenants import make_tenant_id

# A large store is written anew.
_ANSWER_SECONDS: Final = 600.0
# What a caller without a configured tenant is, by the SHA-256 of its credential.
_KEY_OWNER: Final = re.compile(r"key:[0-9a-f]{64}")
_WRONG_USE: Final = 2


class NoGateway(Exception):
    """Nothing answers at the admin port."""


def list_tenants(options: argparse.Namespace, env: Mapping[str, str]) -> str:
    settings = load_chosen_settings(options, env)
    if not settings.tenants:
        return "no tenants in the settings: each caller key is a tenant of its own"
    return "\n".join(tenant.name for tenant in settings.tenants)


def purge_tenant(
    options: argparse.Namespace, env: Mapping[str, str], ask: Callable[[str], str], say: Callable[[str], None]
) -> int:
    """The exit status. ask: a person, by this question. say: a line for the person."""
    settings = load_chosen_settings(options, env)
    owner = _find_owner(settings, options.name, is_removed=options.removed)
    if owner is None:
        say(_describe_unknown(settings, options.name))
        return _WRONG_USE
    if not options.yes and ask(_describe_question(options.name)).strip() != options.name:
        say("gateway: nothing was deleted")
        return 1
    try:
        count = _purge(settings, make_tag(owner))
    except (StoreError, NoGateway) as error:
        say(f"gateway: {error}")
        return 1
    say(
        f"deleted of {options.name}: {count.state} records of state, {count.originals} of originals, "
        f"{count.named} of named responses"
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
        f"gateway: the settings name no tenant {name[:80]!r}{hint}. For one that they named before, add "
        "--removed. A caller without a configured tenant is key:HASH, with all 64 digits."
    )


def _describe_question(name: str) -> str:
    return (
        f"This deletes all summaries, originals and other records of {name}, and the folders that were set "
        "aside as damaged.\nType the name again to go on: "
    )


def _purge(settings: Settings, tag: str) -> PurgeCount:
    """Raises StoreError and NoGateway."""
    folder = find_folder(settings.store)
    if folder is None and not is_redis(settings.store):
        return _ask_gateway(settings, tag)
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
        return await Purge(stores, make_index(settings, removals, stores.originals)).run(tag)
    finally:
        await stores.close()


def _ask_gateway(settings: Settings, tag: str) -> PurgeCount:
    admin = settings.admin
    host = choose_loopback(admin.host)
    connection = http.client.HTTPConnection(host, admin.port, timeout=_ANSWER_SECONDS)
    headers = {"Content-Type": "application/json"}
    if admin.token is not None:
        headers["Authorization"] = f"Bearer {admin.token.get_secret_value()}"
    try:
        connection.request("POST", PURGE_PATH, msgspec.json.encode({"tag": tag}), headers)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise NoGateway(
            f"no gateway answers at the admin port, {host} port {admin.port} ({reason}): give it the "
            "--admin-port that it was started with, or stop it first"
        ) from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise NoGateway(f"the gateway did not delete it: status {response.status} {body[:200]!r}")
    return msgspec.json.decode(body, type=PurgeCount)
