"""Settings from a text, as a file would have it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.settings import Settings, SettingsError, TenantSettings, load_settings

KEYED = "upstreams:\n  default:\n    base_url: https://x.example/v1\n    api_key: sk-up\n"
PLAIN = "upstreams:\n  default: {base_url: 'https://x.example/v1'}\n"
TENANT = "tenants:\n  - name: a\n    keys: [k1]\n"


def load_text(folder: Path, text: str, env: dict[str, str] | None = None, **options: str) -> Settings:
    path = folder / "f.yaml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path, env or {}, **options)  # type: ignore[arg-type]  # port is not used here


def assert_refused(folder: Path, text: str, line: int, expected: str) -> None:
    """The problem has its line and its words, and shows no value."""
    with pytest.raises(SettingsError) as caught:
        load_text(folder, text)
    assert f"f.yaml:{line}: " in str(caught.value)
    assert expected in str(caught.value)
    assert "hunter2" not in str(caught.value)


def make_tenant(**changes: Any) -> TenantSettings:
    plain = TenantSettings(
        name="a",
        keys=(SecretStr("k"),),
        upstream=None,
        api_key=None,
        policy="default",
        models=(),
    )
    return replace(plain, **changes)
