"""Validates a document against the schema; each violation becomes a problem with its place and plain words.

The values themselves never appear in a problem, because they may be secrets.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.settings.document import Document, Location
from gateway.settings.errors import Problem, SettingsError
from gateway.settings.schema import FileSettings
from gateway.settings.section import find_element, find_section

# About one or two wrong letters in a key of usual length.
_TYPO_SIMILARITY = 0.75
# Below it, a suggestion would be a guess: `log_level` is near to `log`, `thresholds` not to `traces`.
_LEAST_SIMILARITY = 0.5

_TOKEN_COUNTS = ("context", "input", "output")

# Words of other programs and of the documents, and the keys that they stand for.
_MEANT: Mapping[str, str] = {
    "threshold": "policies.*.trigger",
    "thresholds": "policies.*.trigger",
    "window": "models.*.context",
}

# Keys of earlier versions.
_MOVED: Mapping[Location, str] = {
    ("prices",): "has moved into the rules of 'models': "
    "{match: gpt-4o*, price: {input: 2.5, cached: 1.25, write: null, output: 10}}"
}

_WORDS = {
    "missing": "is required",
    "model_type": "must be a section of keys",
    "model_attributes_type": "must be a section of keys",
    "dict_type": "must be a section of named entries",
    "list_type": "must be a list",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text (quotes make a number one)",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


def parse_file_settings(document: Document) -> FileSettings:
    """Raises SettingsError with all violations of the schema."""
    try:
        return FileSettings.model_validate(document.values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
    raise SettingsError(_make_problem(detail, document) for detail in details)


def _make_problem(detail: ErrorDetails, document: Document) -> Problem:
    location = detail["loc"]
    if location in _MOVED:
        text = f"{render_location(location)!r} {_MOVED[location]}"
    elif detail["type"] == "extra_forbidden":
        text = _unknown_key(location)
    else:
        words = _WORDS.get(detail["type"]) or _plain(detail["msg"])
        if detail["type"] == "int_type" and location[-1] in _TOKEN_COUNTS:
            words += " of tokens: 128K is written 128000"
        text = f"{render_location(location)}: {words}" if location else words
    return Problem(document.find_origin(location), text)


def render_location(location: Location) -> str:
    """Such as `tenants[0].keys`."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return steps.removeprefix(".")


def _plain(message: str) -> str:
    return message.removeprefix("Value error, ").replace("Input should be", "must be")


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
    paths = list(_paths(FileSettings, ""))
    # Reversed, so that the first of several keys wins: `port` means listen.port, not admin.port.
    elsewhere = {path.rpartition(".")[2]: path for path in reversed(paths)}
    if key in elsewhere:
        return elsewhere[key]
    away = elsewhere.get(find_nearest(key, elsewhere, similarity=_TYPO_SIMILARITY), "")
    near = find_nearest(key, known, similarity=_TYPO_SIMILARITY)
    return near or away or find_nearest(key, known, similarity=_LEAST_SIMILARITY)


def _keys_beside(location: Location) -> list[str]:
    annotation: object = FileSettings
    for step in location[:-1]:
        section = find_section(annotation)
        annotation = section.model_fields[str(step)].annotation if section else find_element(annotation)
    section = find_section(annotation)
    return list(section.model_fields) if section else []


def _paths(annotation: object, prefix: str) -> Iterator[str]:
    """Every key of the schema, with `*` for names and positions."""
    section = find_section(annotation)
    if section is None:
        return
    for name, info in section.model_fields.items():
        yield f"{prefix}{name}"
        yield from _paths(info.annotation, f"{prefix}{name}.")
        yield from _paths(find_element(info.annotation), f"{prefix}{name}.*.")


def find_nearest(name: str, known: Iterable[str], *, similarity: float = 0.0) -> str:
    """The most similar name; "" if none reaches the similarity, from 0 (nothing in common) to 1 (equal)."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=similarity)), "")
