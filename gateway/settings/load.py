"""Loads the settings from a file, its presets, the environment and the command line.

The command line takes precedence over the file, the file over its presets and built-in values.
`GATEWAY_UPSTREAM`, `GATEWAY_ADMIN_HOST` and `GATEWAY_ADMIN_TOKEN` are used if the file does not name these.
`OPENAI_BASE_URL` is ignored: clients use it to point at the gateway.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import gateway
from gateway.core.policy import Compaction, Policy, Prompts
from gateway.settings.checks import find_conflicts, find_warnings
from gateway.settings.files import Document, Location, Problem, SettingsError, SettingsFile, load_document
from gateway.settings.schema import FileSettings, Settings, UpstreamSettings
from gateway.settings.validate import find_nearest, render_location, validate

BUILT_IN_UPSTREAMS: Final[Mapping[str, Mapping[str, object]]] = {
    "default": {"base_url": "https://api.openai.com/v1", "formats": ["chat", "responses"]},
    "anthropic": {"base_url": "https://api.anthropic.com/v1", "formats": ["messages"]},
}
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_TYPO_SIMILARITY: Final = 0.6
# Where a preset's texts are, if its own folder of config/prompts has none.
_PROMPT_FOLDERS: Final = ("opencode", "rolling")
# Numbers that were settings once. A star stands for each name.
_FIXED: Final = (
    ("policies", "*", "trigger", "client_margin_from"),
    ("policies", "*", "keep", "opening_ratio"),
    ("policies", "*", "summary", "max_ratio"),
    ("policies", "*", "recall_tokens"),
    ("retention", "search_bytes_per_tenant"),
    ("keepalive", "every_seconds"),
    *(("bounds", name) for name in ("fields", "values", "depth")),
)


class PresetError(ValueError):
    """No preset has this name."""


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
    names_upstream = document.values["upstreams"] != BUILT_IN_UPSTREAMS
    warnings = [*_drop_fixed(document), *_rename_recalls(document)]
    combined, problems = _with_presets(document)
    try:
        settings = _make_settings(validate(FileSettings, combined), env)
    except SettingsError as error:
        raise SettingsError([*error.problems, *problems]) from error
    problems += find_conflicts(settings, document)
    if problems:
        raise SettingsError(problems)
    places = (document.find_origin(("models", index, "match")) for index in range(len(settings.models)))
    warnings += find_warnings(settings, document, env, names_upstream=names_upstream)
    return replace(settings, warnings=tuple(warnings), model_origins=tuple(places))


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


def _drop_fixed(document: Document) -> Iterator[Problem]:
    """Takes keys that were settings once out of the document."""
    for path in _FIXED:
        for location in _drop(document.values, path, ()):
            text = f"{render_location(location)} has no effect any more"
            yield Problem(document.find_origin(location), text)


def _drop(values: object, path: Location, at: Location) -> Iterator[Location]:
    head, rest = path[0], path[1:]
    if not isinstance(values, dict):
        return
    for name in list(values) if head == "*" else [head] * (head in values):
        if rest:
            yield from _drop(values[name], rest, (*at, name))
        else:
            del values[name]
            yield (*at, name)


def _rename_recalls(document: Document) -> Iterator[Problem]:
    """The model searched by itself in earlier versions (DECISIONS: no tool of the gateway's own)."""
    policies = document.values.get("policies")
    for name, section in policies.items() if isinstance(policies, dict) else ():
        if isinstance(section, dict) and section.get("recall") == "tool":
            section["recall"] = "auto"
            text = f"policies.{name}: recall: tool means auto; models search by themselves at /mcp"
            yield Problem(document.find_origin(("policies", name, "recall")), text)


# Policies: a preset's values under the written ones.


def find_config_folder() -> Path:
    """Inside an installed package, beside the package in a checkout."""
    package = Path(gateway.__file__).parent
    inside = package / "config"
    return inside if inside.is_dir() else package.parent / "config"


def load_preset(name: str) -> Policy:
    """Raises PresetError."""
    return validate(Policy, Document(_overlay(name, {}), {}))


def _with_presets(document: Document) -> tuple[Document, list[Problem]]:
    written, problems = document.values.get("policies"), list[Problem]()
    if not isinstance(written, dict | None):
        return document, problems
    policies: dict[str, object] = {"default": {}, **(written or {})}
    for name, section in policies.items():
        preset = section.get("preset", "adaptive") if isinstance(section, dict) else "adaptive"
        if not isinstance(section, dict | None) or not isinstance(preset, str):
            continue
        try:
            policies[name] = _overlay(preset, section or {})
        except PresetError as error:
            where = document.find_origin(("policies", name, "preset"))
            problems.append(Problem(where, f"policies.{name}.preset: {error}"))
    values = {**document.values, "policies": policies}
    return replace(document, values=values), problems


def _overlay(preset: str, written: Mapping[str, object]) -> dict[str, object]:
    """Key by key. A null prompt is the preset's. Written entries of `model_map` come before the preset's,
    because the first match wins. Raises PresetError.
    """
    base = _read_preset(preset)
    both = {**base, **written, "preset": preset}
    for name in base.keys() & written.keys():
        below, top = base[name], written[name]
        if isinstance(below, dict) and isinstance(top, dict | None):
            both[name] = {**below, **(top or {})}
    prompts, summary = written.get("prompts"), written.get("summary")
    if isinstance(prompts, dict):
        kept = {name: text for name, text in prompts.items() if text not in (None, "")}
        both["prompts"] = {**base["prompts"], **kept}
    below = base.get("summary", {}).get("model_map", {})
    if isinstance(summary, dict) and isinstance(top := summary.get("model_map"), dict):
        later = {pattern: model for pattern, model in below.items() if pattern not in top}
        both["summary"] = {**base.get("summary", {}), **summary, "model_map": {**top, **later}}
    return both


@cache
def _read_preset(name: str) -> Mapping[str, Any]:
    """What differs from the defaults, with the texts. Raises PresetError."""
    folder = find_config_folder()
    known = {path.stem: path for path in sorted((folder / "presets").glob("*.yaml"))}
    if name not in known:
        nearest = find_nearest(name, known, similarity=_TYPO_SIMILARITY)
        hint = f"the nearest is {nearest!r}, and " if nearest else ""
        raise PresetError(f"unknown preset; {hint}the presets are {', '.join(known)}")
    values: dict[str, Any] = load_document(known[name], {}).values
    prompts = {each.name: _find_prompt(folder / "prompts", name, each.name) for each in fields(Prompts)}
    return {**values, "prompts": {**prompts, **values.get("prompts", {})}}


def _find_prompt(folder: Path, preset: str, name: str) -> str:
    """ "": the preset has no such text."""
    paths = (folder / each / f"{name}.txt" for each in (preset, *_PROMPT_FOLDERS))
    found = next((path for path in paths if path.is_file()), None)
    return found.read_text("utf-8").rstrip("\r\n") if found else ""


# The values that the program runs with.


def _make_settings(file: FileSettings, env: Mapping[str, str]) -> Settings:
    upstreams = {
        name: UpstreamSettings(**_read_fields(section), name=name) for name, section in file.upstreams.items()
    }
    policies = {name: _with_switches(policy, env) for name, policy in file.policies.items()}
    return Settings(**_read_fields(file) | {"upstreams": upstreams, "policies": policies})


def _read_fields(values: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    return {each.name: getattr(values, each.name) for each in fields(values)}


def _with_switches(policy: Policy, env: Mapping[str, str]) -> Policy:
    switches = Compaction(
        auto=policy.compaction.auto and not _is_on(env.get("GATEWAY_DISABLE_AUTOCOMPACT", "")),
        prune=policy.compaction.prune and not _is_on(env.get("GATEWAY_DISABLE_PRUNE", "")),
    )
    return replace(policy, compaction=switches)


def _is_on(value: str) -> bool:
    return value.strip().lower() not in _OFF
