"""The page's own files keep to its policy: nothing inline, nothing from elsewhere, no text as markup."""

import re
from pathlib import Path

_STATIC = Path(__file__).resolve().parents[2] / "gateway" / "page" / "static"
_SCRIPTS = sorted((_STATIC / "app").glob("*.js"))
_STYLES = sorted((_STATIC / "styles").glob("*.css"))
_IMPORT = re.compile(r"^import (?:[\w{][^;]*? from )?\"([^\"]+)\";$", re.MULTILINE)
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


def test_scripts_and_styles_stay_small() -> None:
    assert [
        path.name for path in [*_SCRIPTS, *_STYLES] if len(path.read_text("utf-8").splitlines()) > 250
    ] == []


def test_every_script_says_first_what_it_is_for() -> None:
    assert [path.name for path in _SCRIPTS if not path.read_text("utf-8").startswith("/**")] == []
