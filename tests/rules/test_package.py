"""What is built from a clone, what the lock files hold, and what works where an extra is not installed."""

import importlib.metadata
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).resolve().parents[2]
_RUNTIME = {"build", "redis", "otel", "mcp"}
_EXTRAS = {"requirements.lock": _RUNTIME, "requirements-dev.lock": {*_RUNTIME, "dev"}}


@dataclass(frozen=True)
class Python:
    """One whose installer reads a lock on this platform."""

    version: str

    def wants(self, requirement: Requirement, extra: str = "") -> bool:
        env: dict[str, str] = {
            **cast(dict[str, str], default_environment()),
            "python_version": ".".join(self.version.split(".")[:2]),
            "python_full_version": self.version,
            "implementation_version": self.version,
            "extra": extra,
        }
        return requirement.marker is None or requirement.marker.evaluate(env)


def _read_lock(name: str, python: Python) -> dict[str, Requirement]:
    lines = (_ROOT / name).read_text("utf-8").splitlines()
    pins = [Requirement(line.rstrip(" \\")) for line in lines if line[:1].isalnum()]
    return {canonicalize_name(pin.name): pin for pin in pins if python.wants(pin)}


def _find_needs(name: str, extras: set[str], python: Python) -> Iterator[Requirement]:
    """None of a package that is not installed here: this Python does not need it."""
    try:
        needs = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for need in map(Requirement, needs):
        if any(python.wants(need, extra) for extra in ("", *extras)):
            yield need


def _find_missing(lock: dict[str, Requirement], extras: set[str], python: Python) -> Iterator[str]:
    seen, waiting = set(), [("refold", frozenset(extras))]
    while waiting:
        package = waiting.pop()
        if package in seen:
            continue
        seen.add(package)
        name, chosen = package
        for need in _find_needs(name, {*chosen}, python):
            pin = lock.get(canonicalize_name(need.name))
            if pin is None or not need.specifier.contains(next(iter(pin.specifier)).version):
                yield f"{name} needs {need}, and the lock has {pin}"
            waiting.append((canonicalize_name(need.name), frozenset(need.extras)))


@pytest.mark.parametrize("version", ["3.11.0", "3.11.2", "3.11.9", "3.12.0", "3.13.0", "3.14.0"])
@pytest.mark.parametrize("lock", sorted(_EXTRAS))
def test_a_lock_holds_what_each_package_needs_on_each_python(lock: str, version: str) -> None:
    python = Python(version)
    assert sorted(_find_missing(_read_lock(lock, python), _EXTRAS[lock], python)) == []


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
    assert {
        "pyproject.toml",
        "README.md",
        "Makefile",
        "requirements-dev.lock",
        "tests/rules/test_package.py",
    } <= names


_WITHOUT_EXTRAS = """
import sys
EXTRAS = {"redis", "opentelemetry", "mcp"}
class Without:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in EXTRAS else self.finder.find_spec(name, *rest)
sys.meta_path[:] = map(Without, sys.meta_path)
from gateway.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
_UPSTREAM = "admin: {port: 0}\nupstreams: {toy: {base_url: 'http://127.0.0.1:9/v1'}}\n"
_REDIS = _UPSTREAM + "store: redis://127.0.0.1:9/0\n"
_TRACES = _UPSTREAM + "traces: {endpoint: 'http://127.0.0.1:9'}\n"


def _run(folder: Path, settings: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "gateway.yaml").write_text(settings)
    command = [sys.executable, "-c", _WITHOUT_EXTRAS, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)


@pytest.mark.parametrize(("settings", "extra"), [(_REDIS, "redis"), (_TRACES, "otel")])
@pytest.mark.parametrize("command", ["check gateway.yaml", "serve --config gateway.yaml --port 0"])
def test_settings_that_need_an_extra_name_the_command_to_type(
    command: str, settings: str, extra: str, tmp_path: Path
) -> None:
    ended = _run(tmp_path, settings, *command.split())
    assert ended.returncode in (1, 2)
    assert f"pip install 'refold[{extra}]'" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("settings", "expected"), [(_UPSTREAM + "store: 'memory:'\n", "in memory"), (_REDIS, "'refold[redis]'")]
)
def test_the_doctor_works_without_extras(settings: str, expected: str, tmp_path: Path) -> None:
    ended = _run(tmp_path, settings, "doctor", "--config", "gateway.yaml")
    assert expected in ended.stdout and "Traceback" not in ended.stderr
