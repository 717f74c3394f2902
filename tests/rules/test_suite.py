"""The rules that tests keep: what a black box may know, chance, citations, covers, a clone without more."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from pathlib import Path

import pytest

from tests.covering import choose_cover, cover, cover_product

_ROOT = Path(__file__).resolve().parents[2]
_TESTS = _ROOT / "tests"
# They look at the product from outside, so that its code may be rebuilt.
_BLACK_BOXES = ("through", "properties", "surface", "system", "golden", "test_golden")
# What they may share with other tests. `tests.toy.product` alone knows the product.
_SHARED = ("toy", "covering", "examples", "shared_data", "conftest")
_PRODUCT = "toy/product.py"
# The rest of the toy that still imports `gateway`. A file that no longer does so leaves this list.
_OLD_TOYS = {
    "toy/increments.py",
    "toy/shared_store.py",
}


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def _find_imports(tree: ast.Module, folder: str) -> Iterator[str]:
    """Absolute names, also of modules that are asked for by a text."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = f"tests.{folder}".split(".")[: -level + 1 or None] if level else []
                path = ".".join([*above, *([module] if module else [])])
                yield from (f"{path}.{alias.name}" for alias in names)
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if "import" in ast.unparse(node.func):
                yield name


def _find_forbidden(tree: ast.Module, folder: str = "through") -> list[str]:
    """What a black box in this folder imports and may not."""
    allowed = (*_BLACK_BOXES, *_SHARED)
    return [
        name
        for name in _find_imports(tree, folder)
        if name.split(".")[0] == "gateway"
        or (name.startswith("tests.") and not name.startswith(tuple(f"tests.{part}" for part in allowed)))
    ]


def test_a_black_box_knows_nothing_of_the_product() -> None:
    paths = [path for name in _BLACK_BOXES for path in (_TESTS / name).rglob("*.py")]
    paths += [path for name in _BLACK_BOXES if (path := _TESTS / f"{name}.py").exists()]
    found = {
        path.relative_to(_TESTS).as_posix(): _find_forbidden(
            _parse(path), ".".join(path.relative_to(_TESTS).parts[:-1])
        )
        for path in paths
    }
    assert {name: forbidden for name, forbidden in found.items() if forbidden} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import gateway",
        "import gateway.app as app",
        "from gateway.core import history",
        "from gateway import core",
        "def test_it():\n    from gateway.app import Gateway",
        "import importlib\nimportlib.import_module('gateway.app')",
        "__import__('gateway')",
        "from tests.builders.chat import make_chat",
        "from tests import builders",
        "from tests.wire.recorded import RECORDED",
        "from ..builders import chat",
    ],
)
def test_a_black_box_that_knows_more_is_found(line: str) -> None:
    assert _find_forbidden(ast.parse(line)) != []


def test_a_black_box_knows_the_toy_and_what_stands_beside_it() -> None:
    lines = (
        "import re",
        "from tests.toy.product import serve",
        "from . import scenes",
        "import tests.covering",
    )
    assert _find_forbidden(ast.parse("\n".join(lines))) == []


def test_nothing_of_the_toy_but_one_file_knows_the_product() -> None:
    names = {
        path.relative_to(_TESTS).as_posix()
        for path in (_TESTS / "toy").glob("*.py")
        for name in _find_imports(_parse(path), "toy")
        if name.split(".")[0] == "gateway" and not path.name.startswith("test_")
    }
    assert names - {_PRODUCT} == _OLD_TOYS


def test_tests_draw_no_random_number_without_a_seed() -> None:
    calls = (
        (path, node)
        for path in sorted(_TESTS.rglob("*.py"))
        for node in ast.walk(_parse(path))
        if isinstance(node, ast.Call) and _is_unseeded(node)
    )
    assert [f"{path.relative_to(_TESTS)}:{node.lineno}" for path, node in calls] == []


def _is_unseeded(call: ast.Call) -> bool:
    match call.func:
        case ast.Name(id=name):
            module = ""
        case ast.Attribute(attr=name, value=owner):
            module = owner.id if isinstance(owner, ast.Name) else ""
        case _:
            return False
    if name == "Random":
        return not call.args
    return module in ("random", "secrets") or name in ("urandom", "uuid4")


# Documents that the code was planned with. A clone must be complete, so nothing may refer to them.
_ABSENT = re.compile(r"\b(DESIGN|HOUSE|FACTS|STYLE)\b|\b[Dd]ocuments? 00\d §")
_CITING = ("*.py", "*.md", "*.toml", "*.yaml", "Makefile")


def test_no_file_refers_to_a_document_that_is_not_in_the_repository() -> None:
    folders = [_ROOT / name for name in ("gateway", "tests", "bench", "scripts", "config", "docs", ".ci")]
    files = [path for pattern in _CITING for path in (*_ROOT.glob(pattern), *_glob(folders, pattern))]
    citing = [path for path in files if path != Path(__file__) and _ABSENT.search(path.read_text("utf-8"))]
    assert [str(path.relative_to(_ROOT)) for path in citing] == []


def _glob(folders: Sequence[Path], pattern: str) -> Iterator[Path]:
    for folder in folders:
        yield from folder.rglob(pattern)


def _find_readers() -> list[str]:
    """Test files that import the place of the recorded traffic, also by way of other modules of the tests."""
    texts = {path: path.read_text("utf-8") for path in _TESTS.rglob("*.py")}
    readers, found = set[Path](), {_TESTS / "shared_data.py"}
    while found:
        readers |= found
        names = [f"from {'.'.join(path.relative_to(_ROOT).with_suffix('').parts)} " for path in found]
        found = {path for path, text in texts.items() if any(name in text for name in names)} - readers
    return [str(path) for path in sorted(readers) if path.name.startswith("test_")]


def test_nothing_outside_of_the_clone_is_read_when_tests_are_collected(tmp_path: Path) -> None:
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *_find_readers()],
        cwd=_ROOT,
        env={**os.environ, "GATEWAY_SHARED": str(tmp_path / "absent")},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert collected.returncode == 0, collected.stdout[-2_000:]


# Of a pairwise cover.
_COLUMNS = ((40, 60, 150), (1_000, 4_096, 8_192, 32_000), (True, False), ("one", "many"))


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_a_cover_has_every_combination_of_the_asked_strength(strength: int) -> None:
    rows = list(product(*_COLUMNS))
    chosen = [rows[place] for place in choose_cover(rows, strength)]
    for columns in combinations(range(len(_COLUMNS)), strength):
        wanted = set(product(*(_COLUMNS[column] for column in columns)))
        assert {tuple(row[column] for column in columns) for row in chosen} == wanted


def test_a_pairwise_cover_is_much_smaller_than_the_product() -> None:
    rows = list(product(*_COLUMNS))
    assert len(rows) == 48
    assert len(choose_cover(rows)) <= 16


def test_a_combination_that_never_occurs_is_not_asked_for() -> None:
    rows = [("thinks", "small"), ("plain", "small"), ("plain", "large")]
    assert choose_cover(rows) == [0, 1, 2]
    assert choose_cover(rows, strength=1) == [0, 2]


def test_rows_outside_the_cover_are_marked_as_exhaustive() -> None:
    cases = cover(["aa", "ab", "ba", "bb", "a"], lambda case: (case[0], case[-1]), strength=1)
    assert [case.values for case in cases] == [("aa",), ("ab",), ("ba",), ("bb",), ("a",)]
    assert [[mark.name for mark in case.marks] for case in cases] == [
        [],
        ["exhaustive"],
        ["exhaustive"],
        [],
        ["exhaustive"],
    ]


def test_a_product_gives_one_argument_for_each_column() -> None:
    cases = cover_product((1, 2), "xy", strength=1)
    assert [case.values for case in cases] == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]
    assert [bool(case.marks) for case in cases] == [False, True, True, False]
