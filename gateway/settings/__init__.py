"""Settings: what an operator may say, checked at the door, and the frozen values the program runs with.

The way of a file: `document` (YAML with places) with `interpolation` -> `violations` (checked by `schema`,
`policy_schema`) -> `presets` and `crosscheck` -> `effective`. `load` puts the steps together.
"""

from gateway.settings.check import check_file, render_summary
from gateway.settings.crosscheck import is_loopback
from gateway.settings.effective import Settings, TenantSettings, UpstreamSettings
from gateway.settings.errors import Problem, SettingsError
from gateway.settings.load import load_settings
from gateway.settings.schema import (
    Admin,
    Cache,
    FormatName,
    HookTarget,
    HookTargets,
    Keepalive,
    Listen,
    ModelRule,
    Retention,
)

__all__ = [
    "Admin",
    "Cache",
    "FormatName",
    "HookTarget",
    "HookTargets",
    "Keepalive",
    "Listen",
    "ModelRule",
    "Problem",
    "Retention",
    "Settings",
    "SettingsError",
    "TenantSettings",
    "UpstreamSettings",
    "check_file",
    "is_loopback",
    "load_settings",
    "render_summary",
]
