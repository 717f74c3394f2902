"""The base class of every section of a settings file: strict, frozen, without unknown keys.

It converts a value that came from `${…}` to the type of its key: `port: "${PORT:-8080}"` is a number,
`api_key: ${KEY}` is a text even if it consists of digits.
"""

import types
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationInfo, field_validator

from gateway.settings.document import Interpolated, parse_scalar


class Section(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _fit(cls, value: object, info: ValidationInfo) -> object:
        return _fitted(value, cls.model_fields[str(info.field_name)].annotation)


def find_choices(annotation: object) -> list[object]:
    """The alternatives of an annotation: those of `Annotated[int, …] | None` are int and None."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return find_choices(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [choice for part in get_args(annotation) for choice in find_choices(part)]
    return [annotation]


def find_element(annotation: object) -> object:
    """The element type of a list, the value type of a mapping, or None."""
    for choice in find_choices(annotation):
        if get_origin(choice) in (list, dict):
            element: object = get_args(choice)[-1]
            return element
    return None


def find_section(annotation: object) -> type[Section] | None:
    for choice in find_choices(annotation):
        if isinstance(choice, type) and issubclass(choice, Section):
            return choice
    return None


def _fitted(value: object, annotation: object) -> object:
    if isinstance(value, list):
        return [_fitted(item, find_element(annotation)) for item in value]
    if value is None:
        return _fitted_nothing(annotation)
    if value is False and "off" in _list_literals(annotation):
        return "off"  # YAML reads a bare `off` as false.
    if value == "" and type(None) in find_choices(annotation):
        return None  # `"${KEY:-}"` without KEY means that there is no key.
    if isinstance(value, Interpolated):
        return str(value) if _wants_text(annotation) else parse_scalar(str(value))
    if isinstance(value, dict) and find_section(find_element(annotation)):
        return {key: {} if item is None else item for key, item in value.items()}
    return value


def _fitted_nothing(annotation: object) -> object:
    """A section without any line, for example with all of them commented out, is empty."""
    if find_section(annotation):
        return None if type(None) in find_choices(annotation) else {}
    if find_section(find_element(annotation)):
        return [] if any(get_origin(choice) is list for choice in find_choices(annotation)) else {}
    return None


def _list_literals(annotation: object) -> list[object]:
    choices = find_choices(annotation)
    return [literal for each in choices if get_origin(each) is Literal for literal in get_args(each)]


def _wants_text(annotation: object) -> bool:
    choices = find_choices(annotation)
    return any(choice in (str, SecretStr) or get_origin(choice) is Literal for choice in choices)
