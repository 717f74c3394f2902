"""The schema for editors: of every key, and open for references where `refold check` is."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.settings.json_schema import make_json_schema, render_json_schema
from gateway.settings.presets import find_config_folder
from gateway.settings.schema import FileSettings
from gateway.settings.section import Section, find_element, find_section

_REFERENCE = {"$ref": "#/definitions/Reference"}


def test_the_schema_file_is_up_to_date() -> None:
    """`python -m gateway.settings.reference` updates it."""
    assert (find_config_folder() / "schema.json").read_text(encoding="utf-8") == render_json_schema()


def list_sections(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for info in section.model_fields.values():
        for annotation in (info.annotation, find_element(info.annotation)):
            inner = find_section(annotation)
            if inner is not None:
                yield from list_sections(inner)


def find_node(section: type[Section]) -> Any:
    schema = make_json_schema()
    return schema if section is FileSettings else schema["definitions"][section.__name__]


@pytest.mark.parametrize("section", dict.fromkeys(list_sections(FileSettings)))
def test_a_section_has_every_key_with_its_description_and_no_other(section: type[Section]) -> None:
    node = find_node(section)
    assert node["additionalProperties"] is False
    described = {name: value.get("description") for name, value in node["properties"].items()}
    assert described == {name: info.description for name, info in section.model_fields.items()}
    required = [name for name, info in section.model_fields.items() if info.is_required()]
    assert node.get("required", []) == required


def list_values(node: Any) -> Iterator[Any]:
    """Everything that stands for a value, at any depth."""
    for section in (node, *node["definitions"].values()):
        for value in section.get("properties", {}).values():
            yield from list_inner(value)


def list_inner(value: Any) -> Iterator[Any]:
    yield value
    for choice in value.get("anyOf", [value]):
        for key in ("items", "additionalProperties"):
            if isinstance(choice.get(key), dict):
                yield from list_inner(choice[key])


def test_a_reference_may_stand_for_every_number_boolean_and_word_of_a_choice() -> None:
    checked = 0
    for value in list_values(make_json_schema()):
        choices = value.get("anyOf", [value])
        types = {choice.get("type") for choice in choices}
        if types & {"integer", "number", "boolean"} or any("enum" in choice for choice in choices):
            assert _REFERENCE in choices
            checked += 1
        elif "string" in types:
            assert _REFERENCE not in choices
    assert checked > 50


def test_a_section_whose_lines_are_all_comments_is_accepted() -> None:
    properties = make_json_schema()["properties"]
    for name in ("listen", "upstreams", "models", "policies", "tenants"):
        assert {"type": "null"} in properties[name]["anyOf"]


def test_bounds_and_defaults_are_those_of_the_settings() -> None:
    port = find_node(FileSettings)["definitions"]["Listen"]["properties"]["port"]
    number, reference = port["anyOf"]
    assert (port["default"], reference) == (8080, _REFERENCE)
    assert number == {"type": "integer", "minimum": 0, "maximum": 65_535}


def test_every_definition_that_is_referred_to_exists() -> None:
    text = render_json_schema()
    names = {part.partition('"')[0] for part in text.split('"#/definitions/')[1:]}
    assert names <= json.loads(text)["definitions"].keys()
