"""What is built from a clone: everything that an installed gateway reads, and what builds it again."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=_ROOT, check=True)
    return folder


def _list_files(folder: str) -> set[str]:
    found = (path for path in (_ROOT / folder).rglob("*") if "__pycache__" not in path.parts)
    return {path.relative_to(_ROOT).as_posix() for path in found if path.is_file()}


def test_the_wheel_has_each_file_of_the_package_and_its_settings(built: Path) -> None:
    (wheel,) = built.glob("refold-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (commands,) = (archive.read(n) for n in archive.namelist() if n.endswith("entry_points.txt"))
    assert names == _list_files("gateway") | {f"gateway/{name}" for name in _list_files("config")}
    assert {"gateway/py.typed", "gateway/page/static/index.html", "gateway/config/reference.yaml"} <= names
    assert b"refold = gateway.__main__:main" in commands and b"gateway = gateway.__main__:main" in commands


def test_the_source_archive_has_what_builds_and_tests_it(built: Path) -> None:
    (source,) = built.glob("refold-*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert _list_files("gateway") | _list_files("config") <= names
    assert {"pyproject.toml", "README.md", "Makefile", "requirements-dev.lock", "tests/test_main.py"} <= names
