"""A clone with nothing beside it has all tests: those over recorded traffic are skipped."""

import os
import subprocess
import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parent


def _find_readers() -> list[str]:
    """Test files that import the place of the recorded traffic, also by way of other modules of the tests."""
    texts = {path: path.read_text("utf-8") for path in _TESTS.rglob("*.py")}
    readers, found = set[Path](), {_TESTS / "shared_data.py"}
    while found:
        readers |= found
        names = [f"from {'.'.join(path.relative_to(_TESTS.parent).with_suffix('').parts)} " for path in found]
        found = {path for path, text in texts.items() if any(name in text for name in names)} - readers
    return [str(path) for path in sorted(readers) if path.name.startswith("test_")]


def test_nothing_outside_of_the_clone_is_read_when_tests_are_collected(tmp_path: Path) -> None:
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *_find_readers()],
        cwd=_TESTS.parent,
        env={**os.environ, "GATEWAY_SHARED": str(tmp_path / "absent")},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert collected.returncode == 0, collected.stdout[-2_000:]
