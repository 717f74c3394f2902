"""What a settings file may say about a policy: sections built from the declarations in `gateway.core.policy`.

An absent key keeps the value of the preset, so only the keys that were written count. A list or a map of the
file is a tuple, or a tuple of pairs, in a frozen policy.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, Field, create_model

from gateway.core.policy import Doc, NotBlank, NotEmpty, Policy, Prompts, Range
from gateway.settings.section import Section

S = TypeVar("S", bound=Section)
# By name: type and pydantic's `Field`.
Keys = dict[str, Any]


def make_section(declaration: type) -> type[Section]:
    """The section of a dataclass: a key for each field, a section for each field that is a dataclass."""
    name = f"{declaration.__name__}Section"
    return create_model(name, __base__=Section, **_make_keys(declaration))


def _make_keys(declaration: type) -> Keys:
    hints = get_type_hints(declaration, include_extras=True)
    if declaration is Prompts:
        # Null means the preset's text.
        return {
            name: (_translate(hint | None), Field(default=None, description=_find_text(hint)))
            for name, hint in hints.items()
        }
    return {each.name: _make_key(hints[each.name], each.default) for each in fields(declaration)}


def _make_key(hint: object, default: object) -> tuple[object, object]:
    kind, text = _split(hint)[0], _find_text(hint)
    if isinstance(kind, type) and is_dataclass(kind):
        section = make_section(kind)
        return section, Field(default_factory=section, description=text)
    translated = _translate(hint)
    collection = get_origin(translated)
    if collection in (list, dict):
        default = collection(default)
    return translated, Field(default=default, description=text)


def _find_text(hint: object) -> str | None:
    return next((note.text for note in _split(hint) if isinstance(note, Doc)), None)


def _split(annotation: object) -> tuple[Any, ...]:
    """The type, and what is said of it."""
    return get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)


def _translate(annotation: object) -> object:
    """The same type with pydantic's checks in place of ours, as a file writes it."""
    kind, *notes = _split(annotation)
    parts = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        kind = Union[tuple(_translate(part) for part in parts)]  # noqa: UP007 - its parts are known at run time only
    elif get_origin(kind) is tuple:
        element = parts[0]
        kind = dict[get_args(element)] if get_origin(element) is tuple else list[_translate(element)]  # type: ignore[misc]  # likewise
    for check in (check for note in notes for check in _find_checks(note)):
        kind = Annotated[kind, check]
    return kind


def _find_checks(note: object) -> list[object]:
    match note:
        case Range(minimum, above, maximum):
            bounds: dict[str, Any] = {"ge": minimum, "gt": above, "le": maximum}
            return [Field(**{name: bound for name, bound in bounds.items() if bound is not None})]
        case NotEmpty():
            return [Field(min_length=1)]
        case NotBlank():
            return [AfterValidator(_check_not_blank)]
        case _:
            return []


def _check_not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


def _with_keys(keys: Keys) -> Callable[[type[S]], type[S]]:
    """A class decorator that adds keys to a section."""
    return lambda section: create_model(
        section.__name__, __base__=section, __module__=section.__module__, __doc__=section.__doc__, **keys
    )


def _make_preset_keys() -> Keys:
    """A policy's keys, its two switches in a section of their own; the name is no key."""
    keys = _make_keys(Policy)
    del keys["name"]
    switches = {name: keys.pop(name) for name in ("auto", "prune")}
    section = create_model("CompactionSection", __base__=Section, **switches)
    return {
        "compaction": (
            section,
            Field(default_factory=section, description="What may be done without being asked."),
        ),
        **keys,
    }


@_with_keys(_make_preset_keys())
class PresetSection(Section):
    """What a file under `config/presets` holds."""


class PresetName(Section):
    preset: str = Field(
        default="adaptive", description="Where absent keys come from: a file of config/presets, by name."
    )


class PolicySection(PresetSection, PresetName):
    """A preset and the keys that differ from it."""

    @property
    def summary_upstream(self) -> str | None:
        upstream: str | None = self.model_dump()["summary"]["upstream"]
        return upstream
