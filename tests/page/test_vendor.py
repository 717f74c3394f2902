"""What the page has of other projects: each file with its hash and licence, and in what is built."""

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
_ROW = re.compile(
    r"^\| `(?P<file>[\w.-]+)` \|.*`(?P<hash>[0-9a-f]{64})` \| (?P<licence>.*) \|$", re.MULTILINE
)
_LICENCE = re.compile(r"\]\((LICENSE-\w+\.txt)\)")


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
