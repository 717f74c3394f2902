"""How large the package, its tests and the way of one request may be: the numbers of `ceilings.yaml`."""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.rules.ceilings import find_excess_seconds, load_ceilings

_ROOT = Path(__file__).resolve().parents[2]
_CEILINGS = load_ceilings()
_PRODUCT = _ROOT / "tests" / "toy" / "product.py"


def _list_modules(folder: str) -> list[Path]:
    return sorted((_ROOT / folder).rglob("*.py"))


def _count_lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def _knows_the_package(path: Path) -> bool:
    """Also by an import inside a function."""
    names = [
        name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    ]
    return any(name.split(".")[0] == "gateway" for name in names)


@pytest.mark.parametrize("folder", ["gateway", "tests"])
def test_the_folder_is_not_larger_than_its_ceiling(folder: str) -> None:
    paths = _list_modules(folder)
    assert _count_lines(paths) <= _CEILINGS[folder]["lines"]
    assert len(paths) <= _CEILINGS[folder]["files"]


@pytest.mark.parametrize("folder", ["gateway", "tests"])
def test_no_module_is_longer_than_its_ceiling(folder: str) -> None:
    long = {str(path.relative_to(_ROOT)): _count_lines([path]) for path in _list_modules(folder)}
    assert {name: lines for name, lines in long.items() if lines > _CEILINGS["module"]} == {}


def test_most_of_the_tests_do_not_know_what_the_product_is_made_of() -> None:
    paths = _list_modules("tests")
    inside = _count_lines(path for path in paths if path != _PRODUCT and _knows_the_package(path))
    assert 100 * inside / _count_lines(paths) <= _CEILINGS["tests"]["share"]


def test_a_request_that_passes_through_makes_no_more_calls_than_its_ceiling() -> None:
    """Of three counts the least: on a busy machine other work of the gateway falls into a request."""
    found = min(_count_pass_through() for _ in range(3))
    names = ("calls", "files", "crossings")
    more = [name for name, count in zip(names, found, strict=True) if count > _CEILINGS["pass_through"][name]]
    assert more == [], found


def _count_pass_through() -> tuple[int, ...]:
    command = [sys.executable, "scripts/count_calls.py", "--passed-through"]
    counted = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=120, check=True)
    (row,) = (line for line in counted.stdout.splitlines() if line.startswith("passed through"))
    return tuple(map(int, row.split()[2:5]))


@pytest.mark.parametrize(
    ("seconds", "environment", "is_told"),
    [
        (_CEILINGS["seconds"] + 1.0, {"MAKE_TEST_SECONDS": "held"}, True),
        (_CEILINGS["seconds"] - 1.0, {"MAKE_TEST_SECONDS": "held"}, False),
        (9_999.0, {"MAKE_TEST_SECONDS": ""}, False),
        (9_999.0, {}, False),
    ],
)
def test_only_a_whole_run_that_is_held_to_its_seconds_is_told_that_it_took_too_long(
    seconds: float, environment: dict[str, str], is_told: bool
) -> None:
    assert (find_excess_seconds(seconds, environment) is not None) == is_told
