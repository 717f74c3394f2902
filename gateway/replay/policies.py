"""The settings that a replay runs with: those of the file, with a policy in the place of all others.

What a running gateway does beside planning is left out: ports, disks, keys, tenants, quotas, webhooks, model
lists of upstreams.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pydantic import ValidationError

from gateway.core.policy import Policy
from gateway.replay.recordings import ReplayError
from gateway.settings import HookTargets, ModelRule, Settings, Traces
from gateway.settings.load import PresetError, load_preset

# Of a replay without --policy.
AS_CONFIGURED: Final = "as configured"
_DEFAULT: Final = "default"


def choose_settings(settings: Settings, names: Sequence[str], window: int | None) -> dict[str, Settings]:
    """By the name of each policy: one of the settings file, or else a preset.

    window: of every model; None for what the settings and the bundled table say. Raises ReplayError for a
    policy that does not exist, or a window that no model has.
    """
    plain = _without_outside(settings, window)
    if not names:
        return {AS_CONFIGURED: plain}
    return {name: _with_policy(plain, _find_policy(settings, name)) for name in names}


def _without_outside(settings: Settings, window: int | None) -> Settings:
    upstreams = {
        name: replace(each, api_key=None, key_owner=None, discover=False)
        for name, each in settings.upstreams.items()
    }
    rules = (_make_rule(window),) if window is not None else ()
    return replace(
        settings,
        store="memory:",
        hooks=HookTargets(),
        traces=Traces(),
        upstreams=upstreams,
        tenants=(),
        models=(*rules, *settings.models),
    )


def _make_rule(window: int) -> ModelRule:
    try:
        return ModelRule(match="*", context=window)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ReplayError(f"--window {window} {why}") from error


def _with_policy(settings: Settings, policy: Policy) -> Settings:
    """The policy holds for every model, also where a rule names another one."""
    rules = tuple(
        replace(rule, policy=None)
        for rule in settings.models
        if rule.is_about_limits or rule.price is not None
    )
    policies = {**settings.policies, _DEFAULT: policy}
    return replace(settings, policies=policies, models=rules)


def _find_policy(settings: Settings, name: str) -> Policy:
    found = settings.policies.get(name)
    if found is not None:
        return found
    try:
        return load_preset(name)
    except PresetError as error:
        configured = ", ".join(settings.policies)
        raise ReplayError(f"no policy {name!r}: the settings have {configured}; {error}") from error
