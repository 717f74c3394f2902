"""Starts a real gateway in front of a toy, on a free port, with settings from a string.

Knows of the product only `load_settings`, `start_gateway`, `port`, `is_idle` and `stop()`.
"""

import asyncio
import importlib
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.toy.upstream import ToyUpstream


@dataclass(frozen=True)
class RunningGateway:
    """handle: what `gateway.app.start_gateway` returned."""

    port: int
    handle: Any

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"


def make_settings(toy: ToyUpstream, *, store: str = "memory:", output_tokens: int = 0, more: str = "") -> str:
    """YAML for one toy with a known window; `more` is appended. output_tokens 0: its output is unknown.

    The toy is not asked for its model list: what a test counts are its own requests.
    """
    output = f", output: {output_tokens}" if output_tokens else ""
    return (
        f'store: "{store}"\n'
        f'upstreams:\n  default: {{base_url: "{toy.base_url}", discover: false}}\n'
        f'models:\n  - {{match: "toy-*", context: {toy.window}{output}}}\n'
        f"{more}"
    )


@asynccontextmanager
async def running_gateway(
    settings_yaml: str | None, *, upstream: str | None = None, env: Mapping[str, str] | None = None
) -> AsyncIterator[RunningGateway]:
    """None: the gateway without a settings file; then `upstream` is its only upstream."""
    settings_module = importlib.import_module("gateway.settings")
    app = importlib.import_module("gateway.app")
    with tempfile.TemporaryDirectory() as folder:
        path = await asyncio.to_thread(_write, Path(folder), settings_yaml)
        options = {"upstream": upstream, "host": "127.0.0.1", "port": 0}
        settings = settings_module.load_settings(path, dict(env or {}), **options)
        gateway = await app.start_gateway(settings)
        try:
            yield RunningGateway(gateway.port, gateway)
        finally:
            await gateway.stop()


def _write(folder: Path, settings_yaml: str | None) -> Path | None:
    if settings_yaml is None:
        return None
    path = folder / "gateway.yaml"
    path.write_text(settings_yaml, "utf-8")
    return path
