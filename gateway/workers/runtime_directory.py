"""A directory for the sockets of one running gateway, which only its user can enter."""

import os
import tempfile
from pathlib import Path
from typing import Final

# A Unix socket's path has at most 107 bytes on Linux and 103 on macOS; a file name comes behind the folder.
_MAX_PATH_BYTES: Final = 80
_PREFIX: Final = "gateway-"
_SHORT: Final = "/tmp"


def make_runtime_directory() -> "tempfile.TemporaryDirectory[str]":
    """It is gone after its `cleanup`. Raises OSError if there is no place for temporary files."""
    usual = tempfile.gettempdir()
    is_long = len(os.fsencode(usual)) + len(_PREFIX) > _MAX_PATH_BYTES
    return tempfile.TemporaryDirectory(
        prefix=_PREFIX, dir=_SHORT if is_long else usual, ignore_cleanup_errors=True
    )


def remove_left_over(path: Path) -> None:
    """By a worker whose supervisor was killed: its socket, and the directory once it is the last."""
    try:
        path.unlink(missing_ok=True)
        path.parent.rmdir()
    except OSError:
        # Another worker still has its socket there.
        return
