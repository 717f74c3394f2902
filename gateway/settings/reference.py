"""`config/reference.yaml`, made from the schema: every key, its default, one line each.

`python -m gateway.settings.reference` writes it; a test compares.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gateway.settings.folder import find_config_folder
from gateway.settings.load import BUILT_IN_UPSTREAMS
from gateway.settings.schema import FileSettings
from gateway.settings.section import Section, find_element, find_section

_HEADER = """\
# Every setting with its default. Made by `python -m gateway.settings.reference`; do not edit.
# Any value may hold ${VAR}, ${VAR:-default} or ${file:PATH}; '$${' stands for a literal '${'.
# Unknown keys are errors. Where a policy leaves a key out, its preset decides; shown is adaptive.
"""
# What the sections of named or numbered entries show. Lists stay empty: their entry is a comment.
_ENTRIES: dict[str, list[str]] = {"upstreams": list(BUILT_IN_UPSTREAMS), "policies": ["default"]}
_EXAMPLES: dict[str, dict[str, object]] = {
    "models": {"match": "gpt-4o*", "context": 128_000, "output": 16_384},
    "pre_compact": {"url": "http://127.0.0.1:9000/pre", "secret": "${HOOK_SECRET}"},
    "session_start": {"url": "http://127.0.0.1:9000/start", "secret": "${HOOK_SECRET}"},
    "tenants": {"name": "team-a", "keys": ["${TEAM_A_KEY}"], "upstream": "default"},
}


def render_reference() -> str:
    return _HEADER + "\n".join(_fields(FileSettings, {"upstreams": BUILT_IN_UPSTREAMS}, "")) + "\n"


def _fields(section: type[Section], shown: Mapping[str, Any], indent: str) -> Iterator[str]:
    """`shown` holds what differs from the defaults."""
    for name, info in section.model_fields.items():
        inner = find_section(info.annotation)
        element = find_section(find_element(info.annotation))
        if not indent:
            yield ""
        if inner or element:
            yield f"{indent}# {info.description}"
        if inner:
            yield f"{indent}{name}:"
            yield from _fields(inner, {}, f"{indent}  ")
        elif element and name in _ENTRIES:
            yield f"{indent}{name}:"
            yield from _entries(element, _ENTRIES[name], shown.get(name, {}))
        elif element:
            yield f"{indent}{name}: []"
            yield from _example(element, _EXAMPLES[name], indent)
        else:
            yield f"{indent}{_leaf(name, info, shown)}"


def _entries(element: type[Section], names: list[str], shown: Mapping[str, Any]) -> Iterator[str]:
    for name in names:
        yield f"  {name}:"
        yield from _fields(element, shown.get(name, {}), "    ")


def _example(element: type[Section], shown: Mapping[str, Any], indent: str) -> Iterator[str]:
    for position, (name, info) in enumerate(element.model_fields.items()):
        yield f"#  {indent}{'- ' if position == 0 else '  '}{_leaf(name, info, shown)}"


def _leaf(name: str, info: FieldInfo, shown: Mapping[str, Any]) -> str:
    default = info.get_default(call_default_factory=True)
    value = shown.get(name, None if default is PydanticUndefined else default)
    return f"{name}: {json.dumps(value)}  # {info.description}"


if __name__ == "__main__":
    (find_config_folder() / "reference.yaml").write_text(render_reference(), encoding="utf-8")
