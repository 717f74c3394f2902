"""Starts a real gateway in front of a toy, on a free port, with settings from a string."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.app import Gateway
from gateway.reporting.events import Bus
from gateway.settings import load_settings
from gateway.store.stores import Stores
from gateway.wiring import Parts, build
from tests.toy.running import wait_until
from tests.toy.upstream import ToyUpstream


@dataclass
class DefaultStore:
    """Of gateways whose test names no store. The option `--store` of pytest chooses it."""

    url: str

    @contextmanager
    def replaced_by(self, url: str) -> Iterator[None]:
        before, self.url = self.url, url
        try:
            yield
        finally:
            self.url = before


_FREE = "{input: 0, output: 0}"
DEFAULT_STORE = DefaultStore("memory:")


@dataclass(frozen=True)
class RunningGateway:
    app: Gateway
    parts: Parts

    @property
    def port(self) -> int:
        return self.app.port

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    @property
    def admin_port(self) -> int:
        """0 if the admin port is not served."""
        return self.app.admin_port

    @property
    def bus(self) -> Bus:
        return self.app.bus

    async def settle(self) -> None:
        """Returns once no compaction is under way and everything about the finished ones is written."""
        await wait_until(lambda: self.app.is_idle)
        await self.parts.foundation.log_writer.finish()
        await self.parts.foundation.archive.finish()
        await self.parts.foundation.search.finish()
        await self.parts.foundation.sessions.finish()


def make_settings(
    toy: ToyUpstream, *, store: str = "", output_tokens: int = 0, price: str = "", more: str = ""
) -> str:
    """YAML for one toy with a known window; `more` is appended.

    store: empty: the default one. output_tokens 0: its output limit is unknown. price: as `{input: 1, …}`;
    empty: it costs nothing, so that sizes alone decide when to compact.

    The toy is not asked for its model list, so that it only sees the requests of the test.
    """
    output = f", output: {output_tokens}" if output_tokens else ""
    output += f", price: {price or _FREE}"
    return (
        f'store: "{store or DEFAULT_STORE.url}"\n'
        f'upstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
        f'models:\n  - {{match: "toy-*", context: {toy.window}{output}}}\n'
        f"{more}"
    )


@asynccontextmanager
async def running_gateway(
    settings_yaml: str | None,
    *,
    upstream: str | None = None,
    env: Mapping[str, str] | None = None,
    stores: Stores | None = None,
) -> AsyncIterator[RunningGateway]:
    """settings_yaml None: no settings file; then `upstream` is the gateway's only upstream.

    stores: in place of those that the settings name. Without settings of its own the admin port is a free
    one: other tests run at the same time.
    """
    admin_port = None if "admin:" in (settings_yaml or "") else 0
    with tempfile.TemporaryDirectory() as folder:
        path = await asyncio.to_thread(_write, Path(folder), settings_yaml)
        settings = load_settings(
            path, dict(env or {}), upstream=upstream, host="127.0.0.1", port=0, admin_port=admin_port
        )
        parts = build(settings, stores)
        app = Gateway(settings, parts)
        await app.start()
        try:
            yield RunningGateway(app, parts)
        finally:
            await app.stop()


def _write(folder: Path, settings_yaml: str | None) -> Path | None:
    if settings_yaml is None:
        return None
    path = folder / "gateway.yaml"
    path.write_text(settings_yaml, "utf-8")
    return path
