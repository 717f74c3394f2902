"""Runs `refold doctor` on a settings text, beside servers that answer as they should, or do not."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from tests.toy.product import command

# Ports that are free, whatever else runs here; the store of a test's own.
QUIET = "listen: {port: 0}\nadmin: {port: 0}\n"
NO_STORE = QUIET + 'store: "memory:"\n'


@dataclass(frozen=True)
class Finding:
    """fix: empty where nothing needs one."""

    subject: str
    level: str
    what: str
    fix: str


@dataclass(frozen=True)
class Report:
    status: int
    level: str
    findings: Sequence[Finding]
    text: str

    def about(self, subject: str) -> list[Finding]:
        return [each for each in self.findings if each.subject == subject]

    def bad(self, subject: str) -> list[Finding]:
        """What is not well of one subject."""
        return [each for each in self.about(subject) if each.level != "ok"]

    def one(self, subject: str) -> Finding:
        """The only finding of the subject that is not well."""
        (found,) = self.bad(subject)
        assert found.fix
        return found


async def diagnose(folder: Path, text: str, *words: str, env: Mapping[str, str] | None = None) -> Report:
    path = folder / "f.yaml"
    await asyncio.to_thread(path.write_text, text, "utf-8")
    config = () if "--config" in words else ("--config", str(path))
    result = await asyncio.to_thread(command, "doctor", "--json", *config, *words, env=env)
    value = json.loads(result.out)
    findings = [Finding(**{**each, "fix": each["fix"] or ""}) for each in value["findings"]]
    assert result.status == {"ok": 0, "warning": 1, "problem": 2}[value["level"]]
    worst = max((each.level for each in findings), key=["ok", "warning", "problem"].index)
    assert worst == value["level"]
    return Report(result.status, value["level"], findings, result.out + result.err)


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
