"""What an operator may configure, validated when loaded, and the frozen values that the program runs with.

The steps of a file: `document` (YAML with line numbers, references replaced) -> `violations` (validated by
`schema` and `policy_schema`) -> `presets` and `crosscheck` -> `effective`. `load` runs them.
"""

from gateway.settings.crosscheck import is_loopback
from gateway.settings.effective import Settings, TenantSettings, UpstreamSettings
from gateway.settings.errors import Problem, SettingsError
from gateway.settings.load import BUILT_IN_UPSTREAMS, load_settings
from gateway.settings.schema import (
    Admin,
    Bounds,
    Cache,
    FormatName,
    HookTarget,
    HookTargets,
    Keepalive,
    Listen,
    ModelRule,
    Retention,
)
from gateway.settings.summary import describe_exposure, render_summary

__all__ = [
    "BUILT_IN_UPSTREAMS",
    "Admin",
    "Bounds",
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
    "describe_exposure",
    "is_loopback",
    "load_settings",
    "render_summary",
]
