"""All subjects, in the order in which they matter. Upstreams are asked at the same time."""

import argparse
import asyncio
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

from gateway.admin.answers import ConversationList
from gateway.command_line.admin_client import AdminClient, AdminError
from gateway.command_line.options import load_chosen_settings
from gateway.doctor.clock import examine_clock
from gateway.doctor.exposure import examine_exposure
from gateway.doctor.finding import Diagnosis, blame, note_ok
from gateway.doctor.ports import examine_ports
from gateway.doctor.process import examine_process
from gateway.doctor.search_index import examine_search
from gateway.doctor.settings_file import examine_errors, examine_settings
from gateway.doctor.store_disk import examine_disk
from gateway.doctor.streaming import examine_stream
from gateway.doctor.upstream_api import UpstreamReport, examine_upstream
from gateway.doctor.windows import examine_windows
from gateway.http.client import Client
from gateway.settings import Settings, SettingsError
from gateway.store.redis_address import is_redis

_MEMORY: Final = "memory:"
_MOST_CONVERSATIONS: Final = 500
# Each is a line of the report.
_MOST_MODELS: Final = 10


def examine(options: argparse.Namespace, env: Mapping[str, str] = os.environ) -> list[Diagnosis]:
    """options: of `refold doctor`."""
    try:
        settings = load_chosen_settings(options, env)
    except SettingsError as error:
        return list(examine_errors(error))
    return asyncio.run(_examine(settings, options))


async def _examine(settings: Settings, options: argparse.Namespace) -> list[Diagnosis]:
    reports, answers = await _ask_upstreams(settings, options.ask)
    used = await asyncio.to_thread(_find_used_models, settings)
    models = [*options.models, *([options.ask] if options.ask else []), *used]
    listed = {name: report.names for name, report in reports.items() if report.names}
    dates = {name: report.date for name, report in reports.items() if report.date}
    return [
        *examine_settings(settings, options.config),
        *await _examine_store(settings),
        *examine_search(),
        *(finding for report in reports.values() for finding in report.findings),
        *answers,
        *await examine_windows(settings, models, listed),
        *examine_clock(dates),
        # It asks a gateway that may run here, and waits for it.
        *await asyncio.to_thread(lambda: list(examine_ports(settings))),
        *examine_process(settings),
        *examine_exposure(settings),
    ]


def _find_used_models(settings: Settings) -> list[str]:
    """Those of the conversations of the gateway that runs here, if any."""
    if not settings.admin.port:
        return []
    try:
        with AdminClient(settings) as client:
            listed = client.get("/conversations", ConversationList, {"limit": _MOST_CONVERSATIONS})
    except AdminError:
        return []
    return list(dict.fromkeys(row.model for row in listed.conversations))[:_MOST_MODELS]


async def _examine_store(settings: Settings) -> Sequence[Diagnosis]:
    if is_redis(settings.store):
        if find_spec("redis") is None:
            return [blame("store", "the package for Redis is not installed", "pip install 'refold[redis]'")]
        from gateway.doctor.store_redis import examine_redis  # it needs this package

        return await examine_redis(settings)
    if settings.store == _MEMORY:
        return [note_ok("store", "in memory: a restart forgets summaries, and clients go on without them")]
    return await asyncio.to_thread(lambda: list(examine_disk(settings)))


async def _ask_upstreams(
    settings: Settings, model: str | None
) -> tuple[dict[str, UpstreamReport], list[Diagnosis]]:
    """model: is asked for one token at each upstream that can be reached; None: none is."""
    upstreams = settings.upstreams
    async with Client() as client:
        found = await asyncio.gather(*(examine_upstream(client, upstream) for upstream in upstreams.values()))
        reports = dict(zip(upstreams, found, strict=True))
        if model is None:
            return reports, []
        usable = [upstream for name, upstream in upstreams.items() if reports[name].is_usable]
        asked = (examine_stream(client, settings, each, model, reports[each.name].names) for each in usable)
        return reports, list(await asyncio.gather(*asked))
