import subprocess
import sys
from pathlib import Path

import pytest

from gateway.originals.file_locks import FileLocks, LockHeld

_HOLD = """
import sys
from pathlib import Path
from gateway.originals.file_locks import FileLocks
with FileLocks(Path(sys.argv[1])).{kind}("name"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(("kind", "may_read"), [("shared", True), ("exclusive", False)])
def test_other_processes_read_beside_readers_and_write_alone(
    tmp_path: Path, kind: str, may_read: bool
) -> None:
    locks = FileLocks(tmp_path, longest_seconds=0)
    program = [sys.executable, "-c", _HOLD.format(kind=kind), str(tmp_path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LockHeld), locks.exclusive("name"):
            raise AssertionError
        if may_read:
            with locks.shared("name"):
                pass
        else:
            with pytest.raises(LockHeld), locks.shared("name"):
                raise AssertionError
        other.stdin.close()
    with locks.exclusive("name"):
        pass


def test_the_number_of_lock_files_is_bounded(tmp_path: Path) -> None:
    locks = FileLocks(tmp_path)
    for number in range(500):
        with locks.shared(str(number)):
            pass
    assert 1 < len(list(tmp_path.iterdir())) <= 64
