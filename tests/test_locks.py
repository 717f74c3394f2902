"""The lock files hold what each package needs, for every Python that the gateway supports."""

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).resolve().parents[1]
_RUNTIME = {"build", "redis", "otel", "mcp", "embeddings"}
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
