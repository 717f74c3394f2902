"""Validates a document; each violation becomes a problem with its place and plain words.

The schema is strict: `port: "8080"` is an error. What YAML and `${…}` cannot say otherwise is repaired where
it is an error as it stands, and only if that helps. The values themselves never appear in a problem, because
they may be secrets.
"""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gateway.core.policy import PART
from gateway.settings.files import Document, Location, Problem, SettingsError, parse_scalar
from gateway.settings.schema import FileSettings

T = TypeVar("T")
# Of a JSON schema.
Node = dict[str, Any]
_Errors = dict[Location, list[ErrorDetails]]

# About one or two wrong letters in a key of usual length.
_TYPO_SIMILARITY: Final = 0.75
# Below it, a suggestion would be a guess: `log_level` is near to `log`, `thresholds` not to `traces`.
_LEAST_SIMILARITY: Final = 0.5

_TOKEN_COUNTS: Final = ("context", "input", "output")

# Words of other programs and of the documents, and the keys that they stand for.
_MEANT: Final[Mapping[str, str]] = {
    "threshold": "policies.*.trigger",
    "thresholds": "policies.*.trigger",
    "window": "models.*.context",
}

# Keys of earlier versions.
_MOVED: Final[Mapping[Location, str]] = {
    ("prices",): "has moved into the rules of 'models': "
    "{match: gpt-4o*, price: {input: 2.5, cached: 1.25, write: null, output: 10}}",
    ("embeddings",): "is gone: originals are searched by words alone; delete the section",
}

_SECTIONS: Final = ("dataclass_type", "dict_type")
_LISTS: Final = ("tuple_type", "frozen_set_type")
_UNKNOWN: Final = "unexpected_keyword_argument"
_WORDS: Final = {
    "missing": "is required",
    "json_invalid": "a variable holds what is not UTF-8 text",
    "dataclass_type": "must be a section of keys",
    "dict_type": "must be a section of named entries",
    "tuple_type": "must be a list",
    "frozen_set_type": "must be a list",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text (quotes make a number one)",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


def validate(kind: type[T], document: Document) -> T:
    """Raises SettingsError with all violations."""
    # As JSON, in which the strict schema takes lists and sections.
    values, adapter = json.loads(json.dumps(document.values)), TypeAdapter(kind)
    first: _Errors = {}
    while True:
        try:
            return adapter.validate_json(json.dumps(values))
        except ValidationError as error:
            found = _sort_errors(error, values)
        fresh = {place: errors for place, errors in found.items() if place not in first}
        first |= fresh
        repaired = sum(_repair(values, place, errors, document) for place, errors in fresh.items())
        if not repaired:
            break
    # A repair that did not help is not what the file says.
    raise SettingsError(_make_problem(place, detail, document) for place in found for detail in first[place])


def _sort_errors(error: ValidationError, values: object) -> _Errors:
    """By the place in the document."""
    found: _Errors = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        place = detail["loc"] if detail["type"] == "missing" else _find_place(detail["loc"], values)
        found.setdefault(place, []).append(detail)
    return found


def _find_place(location: Location, values: Any) -> Location:  # noqa: ANN401 - JSON
    """Without pydantic's own names of what it tried there."""
    for length, step in enumerate(location):
        is_there = step in values if isinstance(values, dict) else isinstance(values, list)
        if not is_there:
            return location[:length]
        values = values[step]
    return location


def _repair(values: Any, place: Location, errors: list[ErrorDetails], document: Document) -> bool:  # noqa: ANN401 - JSON
    """Whether there was something to repair."""
    if not place or errors[0]["type"] in ("missing", _UNKNOWN):
        return False
    for step in place[:-1]:
        values = values[step]
    written, types = values[place[-1]], {detail["type"] for detail in errors}
    if written is None and types & {*_SECTIONS, *_LISTS}:
        # All lines of a section are commented out.
        values[place[-1]] = {} if types & {*_SECTIONS} else []
    elif written is False and "literal_error" in types:
        values[place[-1]] = "off"  # YAML reads a bare `off` as false.
    elif written == "":
        values[place[-1]] = None  # `"${KEY:-}"` without KEY means that there is no key.
    elif isinstance(written, str) and place in document.replaced:
        values[place[-1]] = parse_scalar(written)
    else:
        return False
    return True


def _make_problem(place: Location, detail: ErrorDetails, document: Document) -> Problem:
    if place in _MOVED:
        text = f"{render_location(place)!r} {_MOVED[place]}"
    elif detail["type"] == _UNKNOWN:
        text = _unknown_key(place)
    else:
        words = _WORDS.get(detail["type"]) or detail["msg"].removeprefix("Value error, ").replace(
            "Input should be", "must be"
        )
        if detail["type"] == "int_type" and place[-1] in _TOKEN_COUNTS:
            words += " of tokens: 128K is written 128000"
        text = f"{render_location(place)}: {words}" if place else words
    return Problem(document.find_origin(place), text)


def render_location(location: Location) -> str:
    """Such as `tenants[0].keys`."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return steps.removeprefix(".")


def _unknown_key(location: Location) -> str:
    known = _keys_beside(location)
    nearest = _nearest_key(str(location[-1]), known)
    hint = f"the nearest valid key is {nearest!r}" if nearest else f"valid keys here: {', '.join(known)}"
    return f"unknown key {render_location(location)!r}; {hint}"


def _nearest_key(key: str, known: list[str]) -> str:
    """What other words mean, else the plural of the same section, else the same key of another section, else
    a very similar one of the same section, else of another section, else a similar one of the same. "": none.
    """
    if key in _MEANT:
        return _MEANT[key]
    if f"{key}s" in known:
        return f"{key}s"
    # Reversed, so that the first of several keys wins: `port` means listen.port, not admin.port.
    elsewhere = {path.rpartition(".")[2]: path for path in reversed(list(_paths(read_schema(), "")))}
    if key in elsewhere:
        return elsewhere[key]
    away = elsewhere.get(find_nearest(key, elsewhere, similarity=_TYPO_SIMILARITY), "")
    near = find_nearest(key, known, similarity=_TYPO_SIMILARITY)
    return near or away or find_nearest(key, known, similarity=_LEAST_SIMILARITY)


def find_nearest(name: str, known: Iterable[str], *, similarity: float = 0.0) -> str:
    """The most similar name; "" if none reaches the similarity, from 0 (nothing in common) to 1 (equal)."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=similarity)), "")


# The keys, as pydantic's JSON schema has them.


@cache
def read_schema() -> Node:
    """Of the whole file."""
    return TypeAdapter(FileSettings).json_schema(ref_template="#/definitions/{model}")


def find_keys(node: Node) -> Node:
    """Those of a section, by name; empty for anything else."""
    for choice in node.get("anyOf", [node]):
        name = choice.get("$ref", "").rpartition("/")[2]
        section: Node = read_schema()["$defs"][name] if name else choice
        if "properties" in section:
            keys: Node = section["properties"]
            return keys
    return {}


def find_element(node: Node) -> Node:
    """Of a list, or of a section with named entries; empty for anything else."""
    for choice in node.get("anyOf", [node]):
        for inside in (choice.get("items"), choice.get("additionalProperties")):
            if isinstance(inside, dict):
                return inside
    return {}


def _keys_beside(location: Location) -> list[str]:
    node = read_schema()
    for step in location[:-1]:
        node = find_keys(node).get(str(step)) or find_element(node)
    return list(find_keys(node))


def _paths(node: Node, prefix: str) -> Iterator[str]:
    """Every key of the schema, with `*` for names and positions."""
    for name, inner in find_keys(node).items():
        yield f"{prefix}{name}"
        yield from _paths(inner, f"{prefix}{name}.")
        yield from _paths(find_element(inner), f"{prefix}{name}.*.")


# The same as a JSON schema for editors: as far as a schema can say it, they accept what `refold check` does.
# `${VAR}` also stands for a number or a boolean, and a section may be empty.

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
