"""References in texts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.interpolation import Interpolated, InterpolationError, apply_interpolation

_ENV = {"A": "one", "EMPTY": "", "ODD": "${A}$$x"}
_HERE = Path()

_GOOD = [
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
_BAD = [
    ("${B}", "environment variable B is not set"),
    ("${A", "without its '}'"),
    ("${}", "expected ${VAR}"),
    ("${1A}", "expected ${VAR}"),
    ("${A-b}", "expected ${VAR}"),
    ("${B:-${A}}", "not nested"),
    ("${file:}", "names no file"),
    ("${file:missing}", "cannot read file 'missing'"),
]


@pytest.mark.parametrize(("text", "expected"), _GOOD)
def test_references_are_replaced(text: str, expected: str) -> None:
    assert apply_interpolation(text, _ENV, _HERE) == expected


@pytest.mark.parametrize(("text", "expected"), _BAD)
def test_a_reference_that_leads_nowhere_is_named(text: str, expected: str) -> None:
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
def test_what_is_put_in_is_never_looked_at_again(value: str, around: str) -> None:
    result = apply_interpolation(f"{around}${{V}}{around}", {"V": value}, _HERE)
    assert result == around + value + around
    assert isinstance(result, Interpolated)
