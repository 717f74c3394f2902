"""The rules that a reader of `gateway` relies on, read from the source itself.

Which of its modules may know which is import-linter's part (`make check`).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_PACKAGE = Path(__file__).resolve().parents[2] / "gateway"

_CORE = """
    __future__ abc base64 bisect collections contextlib dataclasses difflib enum fnmatch functools hashlib
    itertools json math operator re string textwrap types typing unicodedata gateway.core
"""
# The policy is declared once, for decisions and for settings files.
_DECLARES = "core/policy.py: pydantic"
_WIRE = "binascii struct zlib brotli msgspec zstandard gateway.wire"
_MAY_IMPORT = {"core": {*_CORE.split()}, "wire": {*_CORE.split(), *_WIRE.split()}}
_MODULES = sorted(_PACKAGE.rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(_PACKAGE).as_posix()


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def _find_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def _is_allowed(module: str, allowed: set[str]) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:end]) in allowed for end in range(1, len(parts) + 1))


@pytest.mark.parametrize("layer", sorted(_MAY_IMPORT))
def test_core_and_wire_import_pure_modules_only(layer: str) -> None:
    allowed = _MAY_IMPORT[layer]
    wrong = [
        f"{_name(path)}: {module}"
        for path in (_PACKAGE / layer).rglob("*.py")
        for module in _find_imports(_parse(path))
        if not _is_allowed(module, allowed) and not f"{_name(path)}: {module}".startswith(_DECLARES)
    ]
    assert wrong == []


def test_nothing_in_core_or_wire_awaits() -> None:
    waits = (ast.Await, ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith)
    pure = [path for layer in _MAY_IMPORT for path in (_PACKAGE / layer).rglob("*.py")]
    assert [_name(p) for p in pure if any(isinstance(node, waits) for node in ast.walk(_parse(p)))] == []


def test_no_function_is_longer_than_50_lines() -> None:
    functions = (
        (path, node)
        for path in _MODULES
        for node in ast.walk(_parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert [f"{_name(p)}: {n.name}" for p, n in functions if (n.end_lineno or 0) - n.lineno >= 50] == []


def test_every_module_has_a_docstring() -> None:
    empty = [
        path for path in _MODULES if path.read_text("utf-8").strip() and not ast.get_docstring(_parse(path))
    ]
    assert [_name(path) for path in empty] == []


def test_no_module_has_a_name_without_meaning() -> None:
    nameless = {"utils", "helpers", "common", "models", "types", "manager"}
    assert [_name(path) for path in _MODULES if path.stem in nameless] == []


def test_no_type_has_its_name_in_two_modules() -> None:
    places: dict[str, set[str]] = {}
    for path in _MODULES:
        for name in _list_types(path):
            places.setdefault(name, set()).add(_name(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def _list_types(path: Path) -> Iterator[str]:
    """Classes, and other names for types."""
    for node in _parse(path).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name[0].isupper() and not name.isupper():
                yield name


def test_at_most_six_modules_lie_flat_in_the_package() -> None:
    flat = {path.stem for path in _PACKAGE.glob("*.py")} - {"__init__"}
    assert len(flat) <= 6, flat


def test_no_private_member_of_another_package_is_used() -> None:
    """As far as the source shows: members of imported names and of classes with an imported base."""
    assert [f"{_name(p)}:{line}" for p in _MODULES for line in _find_private_access(_parse(p))] == []


def _find_private_access(tree: ast.Module) -> Iterator[int]:
    foreign = {name for node in ast.walk(tree) for name in _list_foreign_names(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and _find_root(node.value) in foreign:
            yield node.lineno
        if isinstance(node, ast.ClassDef) and foreign & {_find_root(base) for base in node.bases}:
            yield from _find_inherited_private(node)


def _list_foreign_names(node: ast.AST) -> Iterator[str]:
    """The names that an import from outside of the gateway binds."""
    if isinstance(node, ast.Import):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] != "gateway":
        yield from (alias.asname or alias.name for alias in node.names)


def _find_inherited_private(owner: ast.ClassDef) -> Iterator[int]:
    """Private members of `self` that the class neither defines nor assigns."""
    members = [
        node for node in ast.walk(owner) if isinstance(node, ast.Attribute) and _find_root(node) == "self"
    ]
    own = {node.attr for node in members if isinstance(node.ctx, ast.Store)}
    own |= {node.name for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {
        n.target.id for n in owner.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    own |= {
        t.id for n in owner.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
    }
    yield from (
        node.lineno
        for node in members
        if isinstance(node.value, ast.Name) and _is_private(node.attr) and node.attr not in own
    )


def _find_root(node: ast.AST) -> str:
    """The name that a chain of members begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
