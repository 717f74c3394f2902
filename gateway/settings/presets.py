"""Makes policies: the values of a preset, a file under `config/presets`, overlaid by those of the
operator.
"""

from pathlib import Path
from typing import Any

import gateway
from gateway.core.policy import Keep, Originals, Policy, Prompts, Pruning, Summary, Trigger
from gateway.settings.document import load_document
from gateway.settings.policy_schema import PolicySection, PresetSection
from gateway.settings.violations import find_nearest

# The keys of a preset that are single values, not sections.
_PLAIN_KEYS = frozenset(
    {"commands", "economy", "estimator", "recall", "recall_tokens", "session_summary", "show_texts"}
)


_TYPO_SIMILARITY = 0.6


class PresetError(ValueError):
    """No preset has this name."""


def find_config_folder() -> Path:
    """Inside an installed package, beside the package in a checkout."""
    package = Path(gateway.__file__).parent
    inside = package / "config"
    return inside if inside.is_dir() else package.parent / "config"


def make_policy(section: PolicySection) -> Policy:
    """The policy, named after its preset. Raises PresetError."""
    written = section.model_dump(exclude_unset=True)
    return _make_policy(section.preset, _overlaid(_load_preset(section.preset), written))


def _make_policy(preset: str, values: dict[str, Any]) -> Policy:
    if values.get("recall") == "tool":
        # The model searched by itself in earlier versions (DECISIONS: no tool of the gateway's own).
        values = values | {"recall": "auto"}
    return Policy(
        name=preset,
        **values.get("compaction", {}),
        **{name: values[name] for name in _PLAIN_KEYS if name in values},
        trigger=Trigger(**values.get("trigger", {})),
        keep=Keep(**values.get("keep", {})),
        pruning=Pruning(**_with_tuples(values.get("pruning", {}))),
        summary=Summary(**_with_tuples(values.get("summary", {}))),
        prompts=Prompts(**_without_nulls(values.get("prompts", {}))),
        originals=Originals(**values.get("originals", {})),
    )


def _overlaid(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Merges sections key by key. A null prompt is the preset's. Written entries of `model_map` come before
    the preset's, because the first match wins.
    """
    sections = PresetSection.model_fields.keys() - _PLAIN_KEYS
    plain = {name: value for name, value in {**base, **top}.items() if name in _PLAIN_KEYS}
    top = {**top, "prompts": _without_nulls(top.get("prompts", {}))}
    both = {name: {**base.get(name, {}), **top.get(name, {})} for name in sections}
    written, preset = (values.get("summary", {}).get("model_map", {}) for values in (top, base))
    if written and preset:
        both["summary"]["model_map"] = written | {k: v for k, v in preset.items() if k not in written}
    return plain | both


def _with_tuples(values: dict[str, Any]) -> dict[str, Any]:
    """Lists as tuples, and maps as tuples of pairs, so that the policy is hashable."""
    frozen = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return values | frozen | {name: tuple(v.items()) for name, v in values.items() if isinstance(v, dict)}


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _load_preset(name: str) -> dict[str, Any]:
    known = {path.stem: path for path in _preset_files()}
    if name not in known:
        nearest = find_nearest(name, known, similarity=_TYPO_SIMILARITY)
        hint = f"the nearest is {nearest!r}, and " if nearest else ""
        raise PresetError(f"unknown preset; {hint}the presets are {', '.join(known)}")
    document = load_document(known[name], {})
    return PresetSection.model_validate(document.values).model_dump(exclude_unset=True)


def _preset_files() -> list[Path]:
    return sorted((find_config_folder() / "presets").glob("*.yaml"))
