"""What an operator may configure, validated when loaded, and the frozen values that the program runs with.

The steps of a file: `files` (YAML with line numbers, references replaced) -> `load` (presets, environment,
command line) -> `validate` (against the declarations of `schema` and of `gateway.core.policy`) -> `checks`.
`show` tells what settings mean, `validate` also which keys there are.
"""

from gateway.settings.checks import is_loopback, list_reached, load_tls, name_provider
from gateway.settings.files import Problem, SettingsError, SettingsFile, read_settings_file
from gateway.settings.load import BUILT_IN_UPSTREAMS, load_settings
from gateway.settings.schema import (
    CREDENTIAL_HEADERS,
    CREDENTIAL_PARAMETERS,
    WIRE_FORMATS,
    Admin,
    Bounds,
    Cache,
    FormatName,
    HookTarget,
    HookTargets,
    Keepalive,
    Listen,
    Log,
    ModelPrice,
    ModelRule,
    Quota,
    Retention,
    Settings,
    TenantSettings,
    Traces,
    UpstreamSettings,
    check_url,
    fingerprint,
)
from gateway.settings.show import describe_exposure, list_warnings, shows_texts

__all__ = [
    "BUILT_IN_UPSTREAMS",
    "CREDENTIAL_HEADERS",
    "CREDENTIAL_PARAMETERS",
    "WIRE_FORMATS",
    "Admin",
    "Bounds",
    "Cache",
    "FormatName",
    "HookTarget",
    "HookTargets",
    "Keepalive",
    "Listen",
    "Log",
    "ModelPrice",
    "ModelRule",
    "Problem",
    "Quota",
    "Retention",
    "Settings",
    "SettingsError",
    "SettingsFile",
    "TenantSettings",
    "Traces",
    "UpstreamSettings",
    "check_url",
    "describe_exposure",
    "fingerprint",
    "is_loopback",
    "list_reached",
    "list_warnings",
    "load_settings",
    "load_tls",
    "name_provider",
    "read_settings_file",
    "shows_texts",
]
