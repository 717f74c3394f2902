"""The documents for readers: code parses, settings load, links lead somewhere, each warning is explained."""

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.surface.written import ROOT as _ROOT
from tests.surface.written import read_file_facts

_DOCUMENTS = sorted([*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\]\((?P<path>[^):#]*)(?:#(?P<anchor>[^)]*))?\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
    "python": ast.parse,
}
# What GitHub leaves out of an anchor: everything but letters, digits, spaces, hyphens and underscores.
_NOT_IN_ANCHOR = re.compile(r"[^\w\- ]")
# The first line of a YAML block that is a whole settings file.
_SETTINGS_START = "# gateway.yaml"


@dataclass(frozen=True)
class Block:
    """Code between fences. language: empty if the fence names none."""

    path: Path
    language: str
    text: str


def _name(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


def _find_blocks(path: Path) -> Iterator[Block]:
    for found in _BLOCK.finditer(path.read_text("utf-8")):
        yield Block(path, found["language"], found["text"])


def _find_anchors(path: Path) -> set[str]:
    """As GitHub makes them. A heading that stands twice gets a number, which no link here uses."""
    text = _BLOCK.sub("", path.read_text("utf-8"))
    return {_NOT_IN_ANCHOR.sub("", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


@pytest.mark.parametrize("path", _DOCUMENTS, ids=_name)
def test_the_code_of_a_document_parses(path: Path) -> None:
    for block in _find_blocks(path):
        parse = _PARSERS.get(block.language)
        if parse is not None:
            assert parse(block.text) is not None, block.text


@pytest.mark.parametrize("path", _DOCUMENTS, ids=_name)
def test_the_links_of_a_document_lead_somewhere(path: Path) -> None:
    lost = []
    for found in _LINK.finditer(_BLOCK.sub("", path.read_text("utf-8"))):
        target = path.parent / found["path"] if found["path"] else path
        anchor = found["anchor"]
        if not target.exists() or (anchor and anchor not in _find_anchors(target)):
            lost.append(found[0])
    assert lost == []


def test_whole_settings_files_in_documents_load(tmp_path: Path) -> None:
    blocks = [block for path in _DOCUMENTS for block in _find_blocks(path)]
    files = [block for block in blocks if block.text.startswith(_SETTINGS_START)]
    env = {name: f"sk-{name}" for block in files for name in re.findall(r"\$\{(\w+)", block.text)}
    for block in files:
        path = tmp_path / "gateway.yaml"
        path.write_text(block.text, "utf-8")
        assert read_file_facts(path, env)["warnings"] == [], _name(block.path)
    assert files


def test_every_client_has_its_page_in_the_index() -> None:
    index = _ROOT / "docs" / "clients" / "README.md"
    linked = {found["path"] for found in _LINK.finditer(index.read_text("utf-8"))}
    assert {path.name for path in index.parent.glob("*.md")} - {index.name} <= linked


# docs/troubleshooting.md explains every warning and error of the log, and no line that is never written.

_SOURCES = sorted((_ROOT / "gateway").rglob("*.py"))
_LEVELS = ("warning", "error", "exception", "critical")
# What stands for a value: in a text of the code, and in the document.
_PLACEHOLDER = re.compile(r"%[.\d]*[a-z]")
_VALUE = re.compile(r"[:…]|\b[A-Z]+\b|\d[\d,]*|'")
_LOG_LINE = re.compile(r"`(?:DEBUG|INFO|WARNING|ERROR) (?P<logger>gateway[\w.]*) (?P<text>[^`]+)`")


@dataclass(frozen=True)
class Module:
    """What a module may write: the names of its loggers, its texts, and those of its severe lines."""

    loggers: frozenset[str]
    texts: tuple[str, ...]
    severe: tuple[str, ...]


@cache
def _read_document() -> str:
    return (_ROOT / "docs" / "troubleshooting.md").read_text("utf-8")


@cache
def _read_modules() -> dict[str, Module]:
    return {path.relative_to(_ROOT).as_posix(): _read_module(path) for path in _SOURCES}


def _read_module(path: Path) -> Module:
    tree = ast.parse(path.read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    named = [call.args[0] for call in calls if ast.unparse(call.func) == "logging.getLogger"]
    module = ".".join(path.relative_to(_ROOT).with_suffix("").parts)
    severe = {f"{logger}.{level}" for logger in _list_loggers(tree) for level in _LEVELS}
    return Module(
        loggers=frozenset(str(node.value) if isinstance(node, ast.Constant) else module for node in named),
        texts=tuple(_list_texts(tree)),
        severe=tuple(
            text for call in calls if ast.unparse(call.func) in severe for text in _list_texts(call.args[0])
        ),
    )


def _list_texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _list_loggers(tree: ast.Module) -> Iterator[str]:
    """The variables that hold loggers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if "getLogger" in ast.unparse(node.value):
                yield from map(ast.unparse, targets)


def _find_telling(parts: list[str]) -> str:
    """The first part of two words or more, or else the longest."""
    stripped = [part.strip(" :;,()'=") for part in parts]
    return next((part for part in stripped if " " in part), max(stripped, key=len))


def test_every_warning_and_error_is_explained() -> None:
    document = _read_document()
    missing = []
    for name, module in _read_modules().items():
        for text in module.severe:
            # The document leaves out values and, behind a colon, advice.
            words = _find_telling(re.split(r"[:;(]", _PLACEHOLDER.sub(":", text)))
            if words not in document:
                missing.append(f"{name}: {text}")
    assert missing == []


def test_every_line_that_is_explained_is_one_that_the_code_writes() -> None:
    lines = list(_LOG_LINE.finditer(_read_document()))
    lost = [line[0] for line in lines if not _is_written(line["logger"], line["text"])]
    assert len(lines) > 20
    assert lost == []


def _is_written(logger: str, text: str) -> bool:
    words = _find_telling(_VALUE.split(text))
    writers = [module for module in _read_modules().values() if logger in module.loggers]
    return any(words in written for module in writers for written in module.texts)


@pytest.mark.parametrize(
    "text", ["WARNING gateway.limits no limits for", "INFO gateway.limit no limits known"]
)
def test_a_line_that_no_code_writes_is_found(text: str) -> None:
    (found,) = _LOG_LINE.finditer(f"`{text}`")
    assert not _is_written(found["logger"], found["text"])
