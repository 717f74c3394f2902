"""Which files are recordings: those that are named, and those below folders that are named.

The files of a folder that hold one request each are one recording, in the order of their names.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway.replay.errors import NotARecording, ReplayError
from gateway.replay.readers import gateway_export, opencode, request_log
from gateway.replay.readers.document import RecordedFile, parse_file
from gateway.replay.recognition import find_reader
from gateway.replay.recording import Recording
from gateway.settings import ModelRule

_SUFFIXES: Final = frozenset({".json", ".jsonl", ".ndjson", ".har", ".log", ".txt"})
# That of an export has some names and numbers.
_LONGEST_FIRST_LINE_BYTES: Final = 1 << 16
_NUMBER: Final = re.compile(r"(\d+)")


class Source(NamedTuple):
    """Files that make one recording. size_bytes: of all of them."""

    name: str
    files: tuple[Path, ...]
    size_bytes: int


class FoundSources(NamedTuple):
    """unreadable: files below folders that are no recordings, with the reason."""

    found: list[Source]
    unreadable: list[tuple[Path, str]]


def find_sources(paths: Sequence[Path]) -> FoundSources:
    """Raises ReplayError for a path that does not exist, or a named file that is no recording."""
    found: list[Source] = []
    unreadable: list[tuple[Path, str]] = []
    for path in paths:
        if path.is_dir():
            found += _find_below(path, unreadable)
        elif path.exists():
            found.append(_find_named(path))
        else:
            raise ReplayError(f"{path}: there is no such file")
    if not found:
        names = ", ".join(map(str, paths))
        raise ReplayError(
            f"{names}: no recording found" + "".join(f"\n{file}: {why}" for file, why in unreadable[:3])
        )
    return FoundSources(_with_short_names(found), unreadable)


def read_source(source: Source, model: str) -> Recording:
    """model: of recordings that name none. Raises NotARecording."""
    documents = [_parse(path) for path in source.files]
    return find_reader(documents[0]).read(_join(documents), model)


def list_rules(sources: Sequence[Source]) -> list[ModelRule]:
    """What exports say about the windows and prices of their models."""
    rules = (gateway_export.read_rule(_read_first_line(source.files[0])) for source in sources)
    return [rule for rule in rules if rule is not None]


def _read_first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline(_LONGEST_FIRST_LINE_BYTES)


def _find_named(path: Path) -> Source:
    try:
        find_reader(_parse(path))
    except NotARecording as error:
        raise ReplayError(f"{path}: this is no recording: {error}") from error
    return Source(str(path), (path,), path.stat().st_size)


def _find_below(folder: Path, unreadable: list[tuple[Path, str]]) -> Iterator[Source]:
    groups: dict[str, list[Path]] = {}
    for path in sorted(_list_files(folder), key=_order):
        try:
            groups.setdefault(_find_group(path), []).append(path)
        except NotARecording as error:
            unreadable.append((path, str(error)))
    for group, paths in groups.items():
        name = group if len(paths) > 1 else str(paths[0])
        yield Source(name, tuple(paths), sum(path.stat().st_size for path in paths))


def _find_group(path: Path) -> str:
    """The name that the files of one recording share; a file of its own has its own. Raises NotARecording."""
    document = _parse(path)
    reader = find_reader(document)
    if reader is request_log and request_log.is_single(document):
        return str(path.parent)
    session = opencode.find_group(document.objects[0]) if reader is opencode else None
    if session is None:
        return str(path)
    # Of `storage/message/SESSION/…`, `storage/part/MESSAGE/…` and `storage/session/PROJECT/…`.
    return str(path.parent.parent.parent / session)


def _list_files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())


def _order(path: Path) -> list[tuple[int, str]]:
    """`2.json` comes before `10.json`."""
    parts = _NUMBER.split(str(path))
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _parse(path: Path) -> RecordedFile:
    try:
        return parse_file(path.read_bytes())
    except OSError as error:
        raise NotARecording(f"it cannot be read: {error.strerror}") from error


def _join(documents: Sequence[RecordedFile]) -> RecordedFile:
    """The documents of one recording as one."""
    if len(documents) == 1:
        return documents[0]
    return RecordedFile(
        [fields for document in documents for fields in document.objects],
        is_lines=True,
        skipped=sum(document.skipped for document in documents),
        size_bytes=sum(document.size_bytes for document in documents),
    )


def _with_short_names(sources: Sequence[Source]) -> list[Source]:
    """The names without the folders that all of them have in common, and without their suffix."""
    parts = [_without_suffix(Path(source.name)).parts for source in sources]
    common = 0
    while all(len(each) > common + 1 and each[common] == parts[0][common] for each in parts):
        common += 1
    return [
        source._replace(name="/".join(each[common:])) for source, each in zip(sources, parts, strict=True)
    ]


def _without_suffix(path: Path) -> Path:
    """A folder may have a dot in its name, too."""
    return path.with_suffix("") if path.suffix in _SUFFIXES else path
