"""Loads the settings from a file, the environment and the command line.

The command line takes precedence over the file, the file over built-in values. `GATEWAY_UPSTREAM`,
`GATEWAY_ADMIN_HOST` and `GATEWAY_ADMIN_TOKEN` are used if the file does not name these. `OPENAI_BASE_URL` is
ignored: clients use it to point at the gateway.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gateway.core.policy import Policy
from gateway.settings.advice import find_warnings
from gateway.settings.crosscheck import DEFAULT_POLICY, find_conflicts
from gateway.settings.document import Document, SettingsFile, load_document
from gateway.settings.effective import Quota, Settings, TenantSettings, UpstreamSettings
from gateway.settings.errors import Problem, SettingsError
from gateway.settings.policy_schema import PolicySection
from gateway.settings.presets import PresetError, make_policy
from gateway.settings.schema import FileSettings
from gateway.settings.tenant_schema import TenantSection, fingerprint_key
from gateway.settings.upstream_schema import UpstreamSection
from gateway.settings.violations import parse_file_settings

BUILT_IN_UPSTREAMS: Mapping[str, Mapping[str, object]] = {
    "default": {"base_url": "https://api.openai.com/v1", "formats": ["chat", "responses"]},
    "anthropic": {"base_url": "https://api.anthropic.com/v1", "formats": ["messages"]},
}
_OFF = frozenset({"", "0", "false", "no", "off"})


def load_settings(
    source: Path | SettingsFile | None,
    env: Mapping[str, str],
    *,
    upstream: str | None = None,
    host: str | None = None,
    port: int | None = None,
    admin_port: int | None = None,
) -> Settings:
    """Raises SettingsError with all problems found.

    `upstream` replaces all upstreams of the file, because their keys are not meant for another address.
    """
    document = load_document(source, env) if source else Document({}, {(): "built-in settings"})
    for location, value, option in (
        (("listen", "host"), host, "--host"),
        (("listen", "port"), port, "--port"),
        (("admin", "port"), admin_port, "--admin-port"),
    ):
        if value is not None:
            document = document.with_value(location, value, option)
    document = _with_admin(document, env)
    document = _with_upstreams(document, env.get("GATEWAY_UPSTREAM"), upstream)
    file = parse_file_settings(document)
    policies, problems = _make_policies(file, document)
    problems += find_conflicts(file, document)
    if problems:
        raise SettingsError(problems)
    settings = _make_settings(file, {name: _with_switches(policy, env) for name, policy in policies.items()})
    places = (document.find_origin(("models", index, "match")) for index in range(len(file.models)))
    is_built_in = document.values["upstreams"] == BUILT_IN_UPSTREAMS
    warnings = find_warnings(file, document, env, names_upstream=not is_built_in)
    return replace(settings, warnings=warnings, model_origins=tuple(places))


def _with_admin(document: Document, env: Mapping[str, str]) -> Document:
    """What a container needs to show its admin port. A token on the command line would be seen by `ps`."""
    section = document.values.get("admin")
    configured = section if isinstance(section, dict) else {}
    for key, name in (("host", "GATEWAY_ADMIN_HOST"), ("token", "GATEWAY_ADMIN_TOKEN")):
        if env.get(name) and configured.get(key) in (None, ""):
            document = document.with_value(("admin", key), env[name], f"${name}")
    return document


def _with_upstreams(document: Document, from_env: str | None, from_command_line: str | None) -> Document:
    """An upstream given as a URL alone supports every format and receives the caller's credential."""
    location = ("upstreams",)
    if from_command_line is not None:
        return document.with_value(location, {"default": {"base_url": from_command_line}}, "--upstream")
    if document.values.get("upstreams") not in (None, {}):
        return document
    if from_env:
        return document.with_value(location, {"default": {"base_url": from_env}}, "$GATEWAY_UPSTREAM")
    return document.with_value(location, dict(BUILT_IN_UPSTREAMS), "built-in upstreams")


def _make_policies(file: FileSettings, document: Document) -> tuple[dict[str, Policy], list[Problem]]:
    policies: dict[str, Policy] = {}
    problems: list[Problem] = []
    for name, section in {DEFAULT_POLICY: PolicySection(), **file.policies}.items():
        try:
            policies[name] = make_policy(section)
        except PresetError as error:
            where = document.find_origin(("policies", name, "preset"))
            problems.append(Problem(where, f"policies.{name}.preset: {error}"))
    return policies, problems


def _with_switches(policy: Policy, env: Mapping[str, str]) -> Policy:
    return replace(
        policy,
        auto=policy.auto and not _is_on(env.get("GATEWAY_DISABLE_AUTOCOMPACT", "")),
        prune=policy.prune and not _is_on(env.get("GATEWAY_DISABLE_PRUNE", "")),
    )


def _is_on(value: str) -> bool:
    return value.strip().lower() not in _OFF


def _make_settings(file: FileSettings, policies: Mapping[str, Policy]) -> Settings:
    return Settings(
        listen=file.listen,
        admin=file.admin,
        store=file.store,
        log=file.log,
        traces=file.traces,
        hooks=file.hooks,
        retention=file.retention,
        embeddings=file.embeddings,
        response_headers=file.response_headers,
        mcp=file.mcp,
        drain_seconds=file.drain_seconds,
        keepalive=file.keepalive,
        cache=file.cache,
        bounds=file.bounds,
        upstreams={name: _make_upstream(name, section) for name, section in file.upstreams.items()},
        models=tuple(file.models),
        policies=policies,
        tenants=tuple(_make_tenant(section) for section in file.tenants),
    )


def _make_upstream(name: str, section: UpstreamSection) -> UpstreamSettings:
    return UpstreamSettings(
        name=name,
        base_url=section.base_url,
        api_key=section.api_key,
        allow=tuple(section.allow),
        formats=frozenset(section.formats),
        include_usage=section.include_usage,
        discover=section.discover,
        max_body_bytes=section.max_body_bytes,
        max_images=section.max_images,
        connect_seconds=section.connect_seconds,
        idle_seconds=section.idle_seconds,
        auth=section.auth,
        headers=section.headers,
        query=section.query,
        ca_file=section.ca_file,
        client_cert=section.client_cert,
        proxy=section.proxy,
    )


def _make_tenant(section: TenantSection) -> TenantSettings:
    return TenantSettings(
        name=section.name,
        fingerprints=tuple(map(fingerprint_key, section.keys)),
        upstream=section.upstream,
        api_key=section.api_key,
        policy=section.policy,
        models=tuple(section.models),
        quota=Quota(
            requests_per_minute=section.requests_per_minute,
            concurrent_requests=section.concurrent_requests,
            summary_calls_per_hour=section.summary_budget.calls_per_hour,
            summary_tokens_per_hour=section.summary_budget.tokens_per_hour,
        ),
    )
