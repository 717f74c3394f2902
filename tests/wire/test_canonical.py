import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.canonical import (
    canonical_arguments,
    canonical_json,
    canonical_part,
    flatten_content,
    without_ephemeral_blocks,
)

_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
_TAGS = ("system-reminder", "system_reminder", "environment_details", "environment_context", "info-msg")


@given(st.dictionaries(st.text(max_size=3), _VALUES, max_size=4), st.sampled_from([None, 2]), st.booleans())
def test_spaces_order_and_escapes_of_arguments_do_not_matter(
    value: dict[str, Any], indent: int | None, is_ascii: bool
) -> None:
    turned = json.dumps(dict(reversed(value.items())), indent=indent, ensure_ascii=is_ascii)
    assert canonical_arguments(turned) == canonical_arguments(json.dumps(value))


@given(_VALUES, _VALUES)
def test_different_arguments_have_different_forms(one: Any, other: Any) -> None:
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical_arguments(json.dumps(one)) == canonical_arguments(json.dumps(other))) == same


@pytest.mark.parametrize("arguments", ["", "{", '{"a":', "not json", "\ud800", "NaN", "1e999"])
def test_arguments_that_are_not_json_are_used_as_they_are(arguments: str) -> None:
    assert canonical_arguments(arguments) == arguments.encode("utf-8", "surrogatepass")


def test_numbers_that_the_encoder_refuses_have_different_forms() -> None:
    assert canonical_json({"a": 10**400}) != canonical_json({"a": 10**400 + 1})
    assert canonical_json("\ud800") != canonical_json("\ud801")


@pytest.mark.parametrize("tag", _TAGS)
def test_ephemeral_blocks_are_left_out(tag: str) -> None:
    block = f"<{tag}>\nnow: Monday\n</{tag}>"
    for text in (f"Do it.{block}", f"{block}\nDo it.", f"{block}Do it.{block}"):
        assert without_ephemeral_blocks(text) == "Do it."


@pytest.mark.parametrize(
    "text",
    [
        "a < b",
        "<b>bold</b>",
        "<system-reminder>never closed",
        "</system-reminder>",
        "<system-reminder >x</system-reminder >",
        "<SYSTEM-REMINDER>x</SYSTEM-REMINDER>",
        "<system-reminder-2>x</system-reminder-2>",
        " spaces around < stay ",
    ],
)
def test_all_other_tags_are_text(text: str) -> None:
    assert without_ephemeral_blocks(text) == text


def test_a_block_ends_with_its_own_tag_and_may_hold_others() -> None:
    text = "<info-msg><system-reminder>x</info-msg>a</system-reminder>"
    assert without_ephemeral_blocks(text) == "a</system-reminder>"


_PIECES = st.lists(st.sampled_from(["a", " ", "\n", "<", ">", "<b>", "</b>"]), max_size=6).map("".join)
_INSIDE = st.lists(st.sampled_from([f"<{tag}>" for tag in _TAGS[1:]] + ["a", "\n"]), max_size=6).map("".join)


@given(_PIECES, _INSIDE, _PIECES)
def test_the_text_around_a_block_stays(before: str, inside: str, after: str) -> None:
    text = f"{before}<system-reminder>{inside}</system-reminder>{after}"
    assert without_ephemeral_blocks(text) == (before + after).strip()


def test_many_unclosed_blocks_are_read_in_one_pass() -> None:
    text = "<system-reminder>" * 200_000
    assert without_ephemeral_blocks(text) == text


@pytest.mark.parametrize(
    ("content", "texts", "others"),
    [
        (None, [], []),
        ("a", ["a"], []),
        ("", [""], []),
        ([{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}], ["a", "b"], []),
        (["a", {"type": "output_text", "text": "b"}], ["a", "b"], []),
        ([{"type": "image_url", "image_url": {}}], [], [{"type": "image_url", "image_url": {}}]),
        ([{"type": "text", "text": None}], [], [{"type": "text", "text": None}]),
        ([{"type": "refusal", "refusal": "no"}], [], [{"type": "refusal", "refusal": "no"}]),
        ({"type": "text", "text": "a"}, ["a"], []),
        ([7], [], [{"type": "unknown", "value": 7}]),
    ],
)
def test_content_of_every_shape_is_divided_into_texts_and_other_parts(
    content: object, texts: list[str], others: list[object]
) -> None:
    assert flatten_content(content) == (texts, others)


def test_fields_that_clients_add_to_a_part_do_not_matter() -> None:
    image: dict[str, object] = {"type": "image_url", "image_url": {"url": "data:" + "A" * 999}}
    assert canonical_part({**image, "cache_control": {"type": "ephemeral"}, "id": "x"}) == canonical_part(
        image
    )
    assert canonical_part({**image, "image_url": {"url": "data:" + "B" * 999}}) != canonical_part(image)
    assert len(canonical_part(image)) == 32
