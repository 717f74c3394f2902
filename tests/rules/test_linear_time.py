"""Every regular expression of the package takes a time that grows with the text, and no faster."""

import re
from collections.abc import Iterator
from functools import lru_cache

import pytest

import gateway
from tests.rules.patterns import Pump, Use, find_makers, find_pumps, find_uses, is_linear

# How many texts for each use in `make test`; `make test-exhaustive` tries all.
_PUMPS = 40
_PARTS = 6
# Quadratic, and it does not matter: who writes the text, or how much of it is looked at.
_EXCUSED = {
    "gateway.command_line.clients._NO_JSON": "a settings file of whoever runs the command",
    "gateway.command_line.clients._read_dotenv": "a settings file of whoever runs the command",
    "gateway.settings.files._FILE_REFERENCE": "the operator's settings",
    "gateway.settings.schema._CHARACTER_CLASS": "a name in the operator's settings",
    "gateway.core.session.file_changes._OPEN_FILE": "the last 1,200 characters of a result",
}
# Functions that make patterns.
_MAKERS = {
    "gateway.core.refusal._forms": "called once, for a table",
    "gateway.core.refusal._any_of": "called once for each table",
    "gateway.core.session.commands._iter_heredocs": "a newline, a word, and at most twenty spaces",
    "gateway.http.allow._compile": "paths of the operator's settings",
}


@lru_cache
def _list_uses() -> list[Use]:
    return find_uses(gateway)


def _find_slow(part: int, most: int | None) -> list[str]:
    """One text for each pattern that is slow."""
    uses = [use for use in _list_uses()[part::_PARTS] if use.place not in _EXCUSED]
    slow = ((use, next(_find_slow_pumps(use, most), None)) for use in uses)
    return [f"{use.place} by {use.method}: {pump}" for use, pump in slow if pump is not None]


def _find_slow_pumps(use: Use, most: int | None) -> Iterator[Pump]:
    return (pump for pump in find_pumps(use.pattern, most) if not is_linear(use, pump))


@pytest.mark.parametrize("part", range(_PARTS))
def test_no_pattern_takes_more_than_linear_time(part: int) -> None:
    assert _find_slow(part, _PUMPS) == []


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_pattern_takes_more_than_linear_time_for_any_text(part: int) -> None:
    assert _find_slow(part, None) == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"<note>(.*?)</note>", "finditer"),
        (r"(?:\w+,?)+;", "match"),
        (r"\s+$", "search"),
    ],
)
def test_a_pattern_that_takes_more_is_found(pattern: str | bytes, method: str) -> None:
    use = Use("here", re.compile(pattern, re.DOTALL), method)
    assert not all(is_linear(use, pump) for pump in find_pumps(use.pattern, _PUMPS))


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"<note>(.*?)</note>", "match"),
        (r"\w++,", "match"),
        (r"[ \t]{0,20}\s{0,20}b", "search"),
        ("|".join(f"word{number}\\b.{{0,60}} other" for number in range(40)), "finditer"),
    ],
)
def test_a_pattern_that_takes_linear_time_passes(pattern: str, method: str) -> None:
    use = Use("here", re.compile(pattern), method)
    assert [pump for pump in find_pumps(use.pattern) if not is_linear(use, pump)] == []


def test_patterns_are_found_in_variables_tables_and_calls_as_they_are_used() -> None:
    found = {(use.place.removeprefix("gateway."), use.method) for use in _list_uses()}
    assert len(found) > 150
    assert {
        ("wire.body._KEY", "match"),
        ("wire.body._SURROGATES", "finditer"),
        ("originals.search._ID", "fullmatch"),
        ("core.refusal.TOKEN_FORMS", "search"),
        ("core.refusal.VETO", "search"),
        ("core.search.cutting._ENDS", "finditer"),
        ("command_line.clients._read_dotenv", "finditer"),
    } <= found


def test_a_function_that_makes_a_pattern_is_named_here_and_what_is_excused_exists() -> None:
    assert sorted(find_makers(gateway)) == sorted(_MAKERS)
    assert _EXCUSED.keys() <= {use.place for use in _list_uses()}


def test_a_text_begins_as_the_pattern_does_and_goes_on_in_its_loop() -> None:
    pumps = find_pumps(re.compile(r"<a>(?:[ \t]+,)*</a>"))
    assert Pump("<a>", "  ,") in pumps or Pump("<a>", " ,") in pumps
    assert Pump("", "<a>") in pumps
