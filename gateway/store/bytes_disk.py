"""diskcache's files and rows, for str keys and bytes values only: nothing is ever pickled or unpickled.

The reason is CVE-2025-69872: diskcache unpickles whatever a row says is a pickle, so whoever can write to the
directory can run code here.
"""

import os
import re
from pathlib import Path
from typing import TypeGuard

import diskcache
from diskcache.core import MODE_BINARY, MODE_RAW, UNKNOWN

# What Disk.filename makes. Anything else in a row could point out of the directory.
_FILE_NAME = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")


class BytesDisk(diskcache.Disk):  # type: ignore[misc]  # the base class is untyped
    """Removals wait for `forget_doomed`, after the commit: diskcache removes a replaced file inside the
    transaction, and a crash before its end would leave the old row without its file."""

    def __init__(self, directory: str, min_file_size: int = 0, pickle_protocol: int = 0) -> None:
        super().__init__(directory, min_file_size, pickle_protocol)
        self._written: list[str] = []
        self._doomed: list[str] = []

    def put(self, key: object) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: bool) -> str:
        if type(key) is not str or not raw:
            raise ValueError("a key that is not plain text is refused")
        return key

    def store(
        self, value: object, read: bool, key: object = UNKNOWN
    ) -> tuple[int, int, str | None, bytes | None]:
        """(size, mode, file name, value) of the row. A file is on disk, synced, before its row exists."""
        if type(value) is not bytes or read:
            raise TypeError(f"values are bytes, not {type(value).__name__}")
        if len(value) < self.min_file_size:
            return 0, MODE_RAW, None, value
        filename, full_path = self.filename(key, value)
        self._written.append(filename)
        _write_file(Path(full_path), value)
        return len(value), MODE_BINARY, filename, None

    def fetch(self, mode: object, filename: object, value: object, read: bool) -> bytes:
        """Raises ValueError for whatever `store` does not write, OSError where the file is gone."""
        if mode == MODE_RAW and type(value) is bytes and not read:
            return value
        if mode == MODE_BINARY and _is_file_name(filename) and not read:
            return Path(self._directory, filename).read_bytes()
        raise ValueError("a row that holds anything but bytes is refused")

    def remove(self, file_path: object) -> None:
        if _is_file_name(file_path):
            self._doomed.append(file_path)

    def forget_doomed(self) -> None:
        """After a commit: the files of replaced and expired rows go."""
        doomed, self._doomed, self._written = self._doomed, [], []
        self._remove_files(doomed)

    def forget_written(self) -> None:
        """After a rollback: the old rows keep their files, the new ones have no row."""
        written, self._doomed, self._written = self._written, [], []
        self._remove_files(written)

    def _remove_files(self, names: list[str]) -> None:
        for name in names:
            super().remove(name)


def _is_file_name(name: object) -> TypeGuard[str]:
    return type(name) is str and _FILE_NAME.fullmatch(name) is not None


def _write_file(path: Path, value: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(value)
        file.flush()
        os.fsync(file.fileno())
    for directory in (path.parent, path.parent.parent, path.parent.parent.parent):
        sync_directory(directory)


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
