"""Sockets lie in a directory that only its user enters, under a short path."""

import stat
import tempfile
from pathlib import Path

from gateway.workers.runtime_directory import make_runtime_directory, remove_left_over


def test_only_its_user_can_enter_it() -> None:
    with make_runtime_directory() as name:
        assert stat.S_IMODE(Path(name).stat().st_mode) == 0o700
    assert not Path(name).exists()


def test_the_last_worker_of_a_killed_supervisor_removes_it() -> None:
    folder = Path(tempfile.mkdtemp())
    first, second = folder / "a", folder / "b"
    first.touch()
    second.touch()
    remove_left_over(first)
    assert second.exists()
    remove_left_over(second)
    assert not folder.exists()
    remove_left_over(second)
