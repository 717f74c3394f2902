"""Which files are recordings: those that are named, and those below folders that are named. What a file holds
says which reader understands it; its name does not matter.

The files of a folder that hold one request each are one recording, in the order of their names.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway.replay.histories import is_export, is_transcript, read_export, read_rule, read_transcript
from gateway.replay.recordings import (
    NotARecording,
    RecordedFile,
    Recording,
    ReplayError,
    describe_keys,
    parse_file,
)
from gateway.replay.request_log import is_request_log, is_single, read_request_log
from gateway.replay.sessions import (
    find_opencode_session,
    is_claude_code,
    is_codex,
    is_opencode,
    read_claude_code,
    read_codex,
    read_opencode,
)
from gateway.settings import ModelRule

_SUFFIXES: Final = frozenset({".json", ".jsonl", ".ndjson", ".har", ".log", ".txt"})
# That of an export has some names and numbers.
_LONGEST_FIRST_LINE_BYTES: Final = 1 << 16
_NUMBER: Final = re.compile(r"(\d+)")


class _RecordingReader(NamedTuple):
    """claims: whether a file has its form, by a sample of it. read: is given the model of recordings that
    name none.
    """

    claims: Callable[[RecordedFile], bool]
    read: Callable[[RecordedFile, str], Recording]


_OPENCODE: Final = _RecordingReader(is_opencode, read_opencode)
_REQUEST_LOG: Final = _RecordingReader(is_request_log, read_request_log)
# The forms of programs come first; nearly anything may be an entry of a log.
_READERS: Final = (
    _RecordingReader(is_export, read_export),
    _RecordingReader(is_claude_code, read_claude_code),
    _RecordingReader(is_codex, read_codex),
    _OPENCODE,
    _RecordingReader(is_transcript, read_transcript),
    _REQUEST_LOG,
)
_FORMS: Final = (
    "request logs of OpenAI's and Anthropic's APIs, transcripts with messages, session files of Claude Code, "
    "Codex and opencode, and what `refold export` writes"
)


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
    return _find_reader(documents[0]).read(_join(documents), model)


def _find_reader(document: RecordedFile) -> _RecordingReader:
    """Raises NotARecording."""
    reader = next((reader for reader in _READERS if reader.claims(document)), None)
    if reader is None:
        raise NotARecording(f"it holds {describe_keys(document)}; known are {_FORMS}")
    return reader


def list_rules(sources: Sequence[Source]) -> list[ModelRule]:
    """What exports say about the windows and prices of their models."""
    rules = []
    for source in sources:
        with source.files[0].open("rb") as file:
            rules.append(read_rule(file.readline(_LONGEST_FIRST_LINE_BYTES)))
    return [rule for rule in rules if rule is not None]


def _find_named(path: Path) -> Source:
    try:
        _find_reader(_parse(path))
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
    reader = _find_reader(document)
    if reader is _REQUEST_LOG and is_single(document):
        return str(path.parent)
    session = find_opencode_session(document.objects[0]) if reader is _OPENCODE else None
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
