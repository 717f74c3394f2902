"""All keys of a settings file as a JSON schema, for editors.

An editor accepts what `refold check` accepts, as far as a schema can say it: `${VAR}` also stands for a
number or a boolean, and a section may be empty. How the values fit together only `refold check` knows.
"""

import json
from typing import Final

from gateway.core.policy import PART
from gateway.settings.validate import Node, read_schema

# What yaml-language-server is made for.
_DRAFT: Final = "http://json-schema.org/draft-07/schema#"
_TITLE: Final = "Settings of the context window gateway"
_REFERENCE: Final = "Reference"
_NULL: Final = {"type": "null"}
# Such as ${VAR} or ${file:PATH}. Not described: an editor would show that instead of the key.
_TEXT_OF_REFERENCE: Final = {"type": "string", "pattern": r"\$\{"}
# These come in a text only by a reference.
_NOT_TEXTS: Final = frozenset({"integer", "number", "boolean"})
_SAID_OF_A_KEY: Final[tuple[str, ...]] = ("description", "default")
# Names that pydantic makes up, and what concerns forms on the web.
_LEFT_OUT: Final = frozenset({"title", "format", "writeOnly", "uniqueItems", PART})


def render_json_schema() -> str:
    made = read_schema()
    sections = {name: _make_section(node) for name, node in made["$defs"].items()}
    schema = {
        "$schema": _DRAFT,
        "title": _TITLE,
        **_make_section(made),
        "definitions": {**sections, _REFERENCE: _TEXT_OF_REFERENCE},
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _make_section(node: Node) -> Node:
    properties = {name: _make_value(value) for name, value in node["properties"].items()}
    kept = {key: value for key, value in node.items() if key in ("description", "required")}
    return {**kept, "type": "object", "properties": properties, "additionalProperties": False}


def _make_value(node: Node) -> Node:
    """What a key, an element of a list or a named entry may be."""
    said = {key: node[key] for key in _SAID_OF_A_KEY if key in node}
    choices = [_make_choice(choice) for choice in node.get("anyOf", [node])]
    if any(choice.get("type") in _NOT_TEXTS or "enum" in choice for choice in choices):
        choices.append({"$ref": f"#/definitions/{_REFERENCE}"})
    if any(_may_be_empty(choice) for choice in choices) and _NULL not in choices:
        choices.append(_NULL)
    return {**said, **(choices[0] if len(choices) == 1 else {"anyOf": choices})}


def _make_choice(node: Node) -> Node:
    choice = {key: value for key, value in node.items() if key not in {*_LEFT_OUT, *_SAID_OF_A_KEY}}
    for key in ("items", "additionalProperties"):
        if isinstance(choice.get(key), dict):
            choice[key] = _make_value(choice[key])
    return choice


def _may_be_empty(choice: Node) -> bool:
    """A section, a list or named entries: all lines of them may be commented out."""
    is_section = "$ref" in choice and not choice["$ref"].endswith(_REFERENCE)
    return is_section or choice.get("type") in ("array", "object")
