"""YAML files with line numbers and references."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.document import (
    Document,
    Interpolated,
    InterpolationError,
    apply_interpolation,
    load_document,
    parse_scalar,
    read_settings_file,
)
from gateway.settings.errors import SettingsError

_BAD = [
    ("a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a', first at"),
    ("a:\n  b: 1\n  b: 2\n", 3, "duplicate key 'b'"),
    ("a: !!python/object:os.system x\n", 1, "tags"),
    ("a: !mine {b: 1}\n", 1, "tags"),
    ("a: !!binary aGk=\n", 1, "tags"),
    ("a: &x 1\nb: *x\n", 2, "aliases are not supported"),
    ("a: &x [*x]\n", 1, "aliases are not supported"),
    ("a:\n  <<: {b: 1}\n", 2, "plain name"),
    ("? [a]\n: 1\n", 1, "plain name"),
    ("${A}: 1\n", 1, "not for keys"),
    ("a: 1\nb: ${A}\n", 2, "variable A is not set"),
    ("a:\n  - x\n  - ${A}\n", 3, "variable A is not set"),
    ("a: {b: ${A}}\n", 1, "needs quotes"),
    ("a: [1\n", 2, "not valid YAML"),
    ("a: 1\n--- \nb: 1\n", 2, "not valid YAML"),
    ("a: 0x_\n", 1, "not a valid number"),
    ("- a\n", 1, "must be a mapping"),
    ("text\n", 1, "must be a mapping"),
]


def _load(folder: Path, text: str) -> Document:
    path = folder / "f.yaml"
    path.write_text(text, encoding="utf-8")
    return load_document(path, {})


@pytest.mark.parametrize(("text", "line", "expected"), _BAD)
def test_a_problem_is_reported_with_its_line(tmp_path: Path, text: str, line: int, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        _load(tmp_path, text)
    assert f"f.yaml:{line}: " in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("content", [b"a: \xff\n", b"a: \x01\n", b"[" * 5000])
def test_a_file_that_is_not_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"f\.yaml"):
        load_document(path, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: cannot be read"):
        load_document(tmp_path / "none.yaml", {})


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n", "null\n"])
def test_an_empty_file_has_no_values(tmp_path: Path, text: str) -> None:
    assert _load(tmp_path, text).values == {}


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        _load(tmp_path, "a: ${A}\nb: ${B}\n")
    assert [problem.where.rpartition(":")[2] for problem in caught.value.problems] == ["1", "2"]


def test_a_missing_key_has_the_place_of_its_section(tmp_path: Path) -> None:
    document = _load(tmp_path, "a: 1\nb:\n  - c: 2\n")
    assert document.find_origin(("b", 0, "missing")).endswith("f.yaml:3")
    assert document.find_origin(("missing",)).endswith("f.yaml")


def test_a_replaced_value_has_its_new_origin() -> None:
    document = Document({"a": {"b": 1, "c": 2}}, {(): "f", ("a",): "f:1", ("a", "b"): "f:2"})
    changed = document.with_value(("a", "b"), 3, "--b")
    assert changed.values == {"a": {"b": 3, "c": 2}}
    assert (changed.find_origin(("a", "b", "x")), changed.find_origin(("a",))) == ("--b", "f:1")
    assert document.values == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("8080", 8080), ("0.5", 0.5), ("true", True), ("", None), ("null", None), ("x", "x"), ("0x_", "0x_")],
)
def test_a_scalar_has_the_type_that_yaml_gives_it(text: str, value: object) -> None:
    assert parse_scalar(text) == value


@given(st.text())
def test_any_text_is_a_scalar(text: str) -> None:
    parse_scalar(text)


_ENV = {"A": "one", "EMPTY": "", "ODD": "${A}$$x"}
_HERE = Path()

_RESOLVED = [
    ("${A}", "one"),
    ("http://${A}:80/${A}", "http://one:80/one"),
    ("${A:-two}", "one"),
    ("${B:-two}", "two"),
    ("${B:-}", ""),
    ("${EMPTY}", ""),
    ("${EMPTY:-two}", "two"),
    ("${B:-a:-b}", "a:-b"),
    ("${ODD}", "${A}$$x"),
    ("$${A}", "${A}"),
    ("pa$$word$A$", "pa$$word$A$"),
]
_UNRESOLVED = [
    ("${B}", "environment variable B is not set"),
    ("${A", "without its '}'"),
    ("${}", "expected ${VAR}"),
    ("${1A}", "expected ${VAR}"),
    ("${A-b}", "expected ${VAR}"),
    ("${B:-${A}}", "not nested"),
    ("${file:}", "has no path"),
    ("${file:missing}", "cannot read file 'missing'"),
]


@pytest.mark.parametrize(("text", "expected"), _RESOLVED)
def test_references_are_replaced(text: str, expected: str) -> None:
    assert apply_interpolation(text, _ENV, _HERE) == expected


@pytest.mark.parametrize(("text", "expected"), _UNRESOLVED)
def test_a_reference_that_cannot_be_replaced_is_named(text: str, expected: str) -> None:
    with pytest.raises(InterpolationError) as caught:
        apply_interpolation(text, _ENV, _HERE)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"), [(b"k\n", "k"), (b"k\r\n", "k"), (b"\xef\xbb\xbfk", "k"), (b"", "")]
)
def test_a_file_gives_its_content_without_the_last_line_end(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    (tmp_path / "key").write_bytes(content)
    assert apply_interpolation("${file:key}", {}, tmp_path) == expected
    assert apply_interpolation(f"${{file:{tmp_path / 'key'}}}", {}, Path("/")) == expected


@pytest.mark.parametrize("content", [b"secret\xff", b"x" * ((1 << 20) + 1)])
def test_an_unusable_file_is_named_and_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InterpolationError) as caught:
        apply_interpolation("${file:key}", {}, tmp_path)
    assert "'key'" in str(caught.value)
    assert "secret" not in str(caught.value)


@given(st.text())
def test_a_text_without_references_is_the_same_text(text: str) -> None:
    if "${" not in text:
        assert apply_interpolation(text, {}, _HERE) is text


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="$")))
def test_replaced_text_is_not_searched_for_references_again(value: str, around: str) -> None:
    result = apply_interpolation(f"{around}${{V}}{around}", {"V": value}, _HERE)
    assert result == around + value + around
    assert isinstance(result, Interpolated)


def test_a_file_that_was_read_stays_as_it_was(tmp_path: Path) -> None:
    path, secret = tmp_path / "f.yaml", tmp_path / "secret"
    path.write_text('a: "${file:secret}"\n')
    secret.write_text("s\n")
    file = read_settings_file(path)
    path.write_text("b: 2\n")
    document = load_document(file, {})
    assert document.values == {"a": "s"}
    assert document.find_origin(("a",)) == f"{path}:1"
    assert "secret" not in repr(file)


def test_a_file_is_read_together_with_those_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("old\n")
    path = tmp_path / "gateway.yaml"
    path.write_text("# ${file:none}\na: ${file:key}\n")
    file = read_settings_file(path)
    (tmp_path / "key").unlink()
    assert file.references == {"key": "old"}
    assert load_document(file, {}).values == {"a": "old"}
    assert "old" not in repr(file)
