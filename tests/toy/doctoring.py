"""Runs `refold doctor` on a settings text, and servers that speak TLS or answer as they should not."""

import argparse
import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from gateway.command_line.options import parse_arguments
from gateway.doctor.examination import examine
from gateway.doctor.finding import Diagnosis

# Ports that are free, whatever else runs here; the store of a test's own.
QUIET = "listen: {port: 0}\nadmin: {port: 0}\n"
NO_STORE = QUIET + 'store: "memory:"\n'


def make_options(folder: Path, text: str, *words: str) -> argparse.Namespace:
    """Of `refold doctor` with this settings file."""
    path = folder / "gateway.yaml"
    path.write_text(text, "utf-8")
    return parse_arguments(["doctor", "--config", str(path), *words])


async def run_doctor(
    folder: Path, text: str, *words: str, env: Mapping[str, str] | None = None
) -> list[Diagnosis]:
    options = make_options(folder, text, *words)
    return await asyncio.to_thread(examine, options, env or {})


def find_bad(findings: Sequence[Diagnosis], subject: str) -> list[Diagnosis]:
    """What is not well of one subject."""
    return [finding for finding in findings if finding.subject == subject and finding.level != "ok"]


def find_one(findings: Sequence[Diagnosis], subject: str) -> Diagnosis:
    """The only finding of the subject that is not well."""
    (found,) = find_bad(findings, subject)
    assert found.fix
    return found


def name_upstream(base_url: str, more: str = "") -> str:
    """A line of settings. more: such as `, api_key: sk-x`."""
    return f"upstreams: {{up: {{base_url: '{base_url}'{more}}}}}\n"


@asynccontextmanager
async def serving_models(
    *,
    names: Sequence[str] = ("toy-1",),
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    prefix: str = "/v1",
) -> AsyncIterator[str]:
    """An upstream with a list of models and nothing else. The base URL of it, with /v1 or without."""

    async def list_models(_: web.Request) -> web.Response:
        data = [{"id": name, "max_model_len": 9_000} for name in names]
        return web.json_response({"object": "list", "data": data}, headers=headers)

    application = web.Application()
    application.router.add_get(f"{prefix}/models", list_models)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{runner.addresses[0][1]}{prefix}"
    finally:
        await runner.cleanup()
