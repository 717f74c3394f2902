"""Settings from a text, as a file would have it, and those of one tenant."""

from pathlib import Path
from typing import Any

from pydantic import SecretStr

from gateway.settings import Settings, TenantSettings, load_settings
from tests.surface.written import KEYED as KEYED
from tests.surface.written import PLAIN as PLAIN
from tests.surface.written import TENANT as TENANT
from tests.surface.written import write


def load_text(folder: Path, text: str, env: dict[str, str] | None = None) -> Settings:
    return load_settings(Path(write(folder, text)), env or {})


def make_tenant(**changes: Any) -> TenantSettings:
    fields: dict[str, Any] = {"name": "a", "keys": (SecretStr("k"),)}
    return TenantSettings(**fields | changes)
