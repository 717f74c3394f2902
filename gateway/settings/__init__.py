"""What an operator may configure, validated when loaded, and the frozen values that the program runs with.

The steps of a file: `document` (YAML with line numbers, references replaced) -> `violations` (validated by
`schema` and `policy_schema`) -> `presets` and `crosscheck` -> `effective`. `load` runs them.
"""

from gateway.settings.crosscheck import is_loopback, list_reached, name_provider
from gateway.settings.diagnostics_schema import Log, Traces
from gateway.settings.document import SettingsFile, read_settings_file
from gateway.settings.effective import Quota, Settings, TenantSettings, UpstreamSettings
from gateway.settings.errors import Problem, SettingsError
from gateway.settings.load import BUILT_IN_UPSTREAMS, load_settings
from gateway.settings.model_price import ModelPrice
from gateway.settings.model_rule import ModelRule
from gateway.settings.schema import (
    Admin,
    Bounds,
    Cache,
    HookTarget,
    HookTargets,
    Keepalive,
    Listen,
    Retention,
)
from gateway.settings.summary import describe_exposure, render_summary, shows_texts
from gateway.settings.tenant_schema import fingerprint
from gateway.settings.upstream_schema import CREDENTIAL_HEADERS, CREDENTIAL_PARAMETERS, FormatName
from gateway.settings.values import load_tls

__all__ = [
    "BUILT_IN_UPSTREAMS",
    "CREDENTIAL_HEADERS",
    "CREDENTIAL_PARAMETERS",
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
    "describe_exposure",
    "fingerprint",
    "is_loopback",
    "list_reached",
    "load_settings",
    "load_tls",
    "name_provider",
    "read_settings_file",
    "render_summary",
    "shows_texts",
]
