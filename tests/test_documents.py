"""The documents for readers: their code parses, their settings load, their links lead somewhere."""

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gateway.settings import load_settings

_ROOT = Path(__file__).resolve().parents[1]
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
        assert load_settings(path, env).warnings == (), _name(block.path)
    assert files


def test_every_client_has_its_page_in_the_index() -> None:
    index = _ROOT / "docs" / "clients" / "README.md"
    linked = {found["path"] for found in _LINK.finditer(index.read_text("utf-8"))}
    assert {path.name for path in index.parent.glob("*.md")} - {index.name} <= linked
