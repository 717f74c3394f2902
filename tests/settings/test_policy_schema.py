"""Sections are built from the declarations of a policy."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import pytest
from pydantic import ValidationError

from gateway.core.policy import (
    Doc,
    Keep,
    Name,
    NotBlank,
    Originals,
    Prompts,
    Pruning,
    Range,
    Summary,
    Trigger,
)
from gateway.settings.policy_schema import PolicySection, PresetSection, make_section
from gateway.settings.section import Section


@dataclass(frozen=True)
class _Inner:
    texts: Annotated[tuple[Name, ...], Doc("Some texts.")] = ("a",)
    pairs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class _Declared:
    share: Annotated[float, Range(above=0, maximum=1), Doc("A share.")] = 0.5
    count: Annotated[Annotated[int, Range(minimum=2)] | None, Doc("A count.")] = None
    text: Annotated[str, NotBlank()] = "x"
    inner: Annotated[_Inner, Doc("More.")] = dataclasses.field(default_factory=_Inner)


_SECTION = make_section(_Declared)


def test_a_field_becomes_a_key_with_its_default_and_its_text() -> None:
    assert _SECTION().model_dump() == {
        "share": 0.5,
        "count": None,
        "text": "x",
        "inner": {"texts": ["a"], "pairs": {}},
    }
    texts = [key.description for key in _SECTION.model_fields.values()]
    assert texts == ["A share.", "A count.", None, "More."]


@pytest.mark.parametrize(
    "values",
    [
        {"share": 1.0, "count": 2, "text": " x"},
        {"share": 0.1, "count": None},
        {"inner": {"texts": [], "pairs": {"a": "b", "c": None}}},
    ],
)
def test_values_within_their_range_are_accepted(values: dict[str, object]) -> None:
    assert _SECTION.model_validate(values).model_dump(exclude_unset=True) == values


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"share": 0}, "greater than 0"),
        ({"share": 1.1}, "less than or equal to 1"),
        ({"count": 1}, "greater than or equal to 2"),
        ({"text": " "}, "must not be blank"),
        ({"inner": {"texts": [""]}}, "at least 1 character"),
        ({"inner": {"pairs": {"a": 1}}}, "valid string"),
        ({"inner": {"text": ["a"]}}, "Extra inputs"),
    ],
)
def test_values_outside_their_range_are_refused(values: dict[str, object], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        _SECTION.model_validate(values)


@pytest.mark.parametrize("declaration", [Trigger, Keep, Pruning, Summary, Prompts, Originals])
def test_every_field_of_a_policy_has_a_text(declaration: type) -> None:
    keys = make_section(declaration).model_fields
    assert list(keys) == [each.name for each in dataclasses.fields(declaration)]
    assert all(key.description for key in keys.values())


def test_a_policy_has_the_keys_of_a_preset_and_its_name() -> None:
    assert list(PolicySection.model_fields) == ["preset", *PresetSection.model_fields]
    assert issubclass(PolicySection, Section)
    sections = ["trigger", "keep", "pruning", "summary", "prompts", "originals"]
    assert list(PresetSection.model_fields) == [
        "compaction",
        "commands",
        "show_texts",
        "session_summary",
        "recall",
        "recall_tokens",
        "economy",
        "estimator",
        *sections,
    ]


def test_the_upstream_of_the_summary_is_found() -> None:
    assert PolicySection().summary_upstream is None
    assert PolicySection.model_validate({"summary": {"upstream": "x"}}).summary_upstream == "x"
