"""The page's own files keep to its policy: nothing inline, nothing from elsewhere, no text as markup. What
it has of other projects is there with its hash and licence, and in what is built.
"""

import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_STATIC = _ROOT / "gateway" / "page" / "static"
_VENDOR = _STATIC / "vendor"
_SCRIPTS = sorted((_STATIC / "app").glob("*.js"))
_STYLES = sorted((_STATIC / "styles").glob("*.css"))
_IMPORT = re.compile(r"^import (?:[\w{][^;]*? from )?\"([^\"]+)\";$", re.MULTILINE)
_ROW = re.compile(
    r"^\| `(?P<file>[\w.-]+)` \|.*`(?P<hash>[0-9a-f]{64})` \| (?P<licence>.*) \|$", re.MULTILINE
)
_LICENCE = re.compile(r"\]\((LICENSE-\w+\.txt)\)")
# Each of them turns text into markup or code.
_DANGEROUS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|srcdoc"
    r"|\beval\(|new Function"
)


def test_the_document_has_no_inline_script_style_or_handler() -> None:
    text = (_STATIC / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text) == []
    links = re.findall(r"(?:src|href)=\"([^\"]+)\"", text)
    assert links and [link for link in links if "//" in link or link.startswith("/")] == []
    assert [link for link in links if link != "metrics" and not (_STATIC / link).is_file()] == []


def test_no_script_turns_text_into_markup_or_code() -> None:
    assert [path.name for path in _SCRIPTS if _DANGEROUS.search(path.read_text("utf-8"))] == []


def test_scripts_import_what_is_beside_them_and_nothing_lies_unused() -> None:
    imported = {path: _IMPORT.findall(path.read_text("utf-8")) for path in _SCRIPTS}
    targets = {(path.parent / name).resolve() for path, names in imported.items() for name in names}
    assert [str(target) for target in targets if not target.is_file()] == []
    assert {path for path in _SCRIPTS if path not in targets} == {_STATIC / "app" / "main.js"}


def test_nothing_is_loaded_from_elsewhere() -> None:
    allowed = {"http://HOST:PORT"}  # shown while the gateway's own address is not known
    for path in [*_SCRIPTS, *_STYLES]:
        found = set(
            re.findall(
                r"(?:https?:)?//[\w.:]+\w", re.sub(r"^\s*//.*$", "", path.read_text("utf-8"), flags=re.M)
            )
        )
        assert found <= allowed, path.name


def test_every_file_has_its_source_its_hash_and_its_licence() -> None:
    text = (_VENDOR / "SOURCES.md").read_text("utf-8")
    rows = {row["file"]: row for row in _ROW.finditer(text)}
    files = {path.name for path in _VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert rows.keys() == files
    for name, row in rows.items():
        assert hashlib.sha256((_VENDOR / name).read_bytes()).hexdigest() == row["hash"], name
        licences = _LICENCE.findall(row["licence"])
        assert licences and all((_VENDOR / licence).is_file() for licence in licences), name


def test_wheel_and_source_distribution_hold_the_whole_page(tmp_path: Path) -> None:
    wanted = {path.relative_to(_ROOT).as_posix() for path in _STATIC.rglob("*") if path.is_file()}
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=_ROOT, check=True, capture_output=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as files:
        assert wanted <= set(files.namelist())
    with tarfile.open(sdist) as archive:
        assert wanted <= {name.partition("/")[2] for name in archive.getnames()}
