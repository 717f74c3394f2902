"""Which files are recordings: those that are named, and those below folders that are named. What a file holds
says which reader understands it; its name does not matter.

The files of a folder that hold one request each are one recording, in the order of their names.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gateway.replay.bodies import (
    is_export,
    is_log,
    is_single,
    is_transcript,
    read_export,
    read_log,
    read_rule,
    read_transcript,
)
from gateway.replay.recordings import NotARecording, RecordedFile, Recording, ReplayError, parse_file
from gateway.replay.sessions import is_claude_code, is_codex, read_claude_code, read_codex
from gateway.settings import ModelRule

_SUFFIXES: Final = frozenset({".json", ".jsonl", ".ndjson", ".log", ".txt"})
_NUMBER: Final = re.compile(r"(\d+)")
# Of a file that is no recording, so many keys are named.
_SHOWN_KEYS: Final = 6

# Is given the model of recordings that name none.
_Read = Callable[[RecordedFile, str], Recording]
# Whether a file has a form, by a sample of it, and its reader. The forms of programs come first; nearly
# anything may be an entry of a log.
_READERS: Final[tuple[tuple[Callable[[RecordedFile], bool], _Read], ...]] = (
    (is_export, read_export),
    (is_claude_code, read_claude_code),
    (is_codex, read_codex),
    (is_transcript, read_transcript),
    (is_log, read_log),
)
_FORMS: Final = (
    "request logs of OpenAI's and Anthropic's APIs, transcripts with messages, session files of Claude Code "
    "and Codex, and what `refold export` writes"
)


class Source(NamedTuple):
    """Files that make one recording. size_bytes: of all of them."""

    name: str
    files: tuple[Path, ...]
    size_bytes: int


class FoundSources(NamedTuple):
    """unreadable: files below folders that are no recordings, with the reason. rules: what exports say about
    the windows and prices of their models.
    """

    found: list[Source]
    unreadable: list[tuple[Path, str]]
    rules: list[ModelRule]


def find_sources(paths: Sequence[Path]) -> FoundSources:
    """Raises ReplayError for a path that does not exist, or a named file that is no recording."""
    # By the name that the files of one recording share; a file of its own has its own.
    groups: dict[str, list[Path]] = {}
    unreadable: list[tuple[Path, str]] = []
    rules: list[ModelRule | None] = []
    for file, is_named in _list_files(paths).items():
        try:
            document = _parse(file)
            reader = _find_reader(document)
        except NotARecording as error:
            if is_named:
                raise ReplayError(f"{file}: this is no recording: {error}") from error
            unreadable.append((file, str(error)))
            continue
        is_entry = reader is read_log and is_single(document) and not is_named
        groups.setdefault(str(file.parent if is_entry else file), []).append(file)
        rules.append(read_rule(document) if reader is read_export else None)
    if not groups:
        names = ", ".join(map(str, paths))
        raise ReplayError(
            f"{names}: no recording found" + "".join(f"\n{file}: {why}" for file, why in unreadable[:3])
        )
    return FoundSources(_make_sources(groups), unreadable, [rule for rule in rules if rule is not None])


def read_source(source: Source, model: str) -> Recording:
    """model: of recordings that name none. Raises NotARecording."""
    documents = [_parse(path) for path in source.files]
    first = whole = documents[0]
    if len(documents) > 1:
        objects = [fields for document in documents for fields in document.objects]
        whole = RecordedFile(objects, True, sum(document.skipped for document in documents))
    return _find_reader(first)(whole, model)


def _find_reader(document: RecordedFile) -> _Read:
    """Raises NotARecording."""
    reader = next((read for claims, read in _READERS if claims(document)), None)
    if reader is None:
        keys = ", ".join(repr(name)[:40] for name in [*document.objects[0]][:_SHOWN_KEYS])
        what = "lines of JSON objects" if document.is_lines else "a JSON object"
        raise NotARecording(f"it holds {what} with {keys or 'no keys'}; known are {_FORMS}")
    return reader


def _list_files(paths: Iterable[Path]) -> dict[Path, bool]:
    """Each once, and whether it was named itself. Raises ReplayError."""
    files: dict[Path, bool] = {}
    for path in paths:
        if path.is_dir():
            below = (each for each in path.rglob("*") if each.suffix in _SUFFIXES and each.is_file())
            files |= dict.fromkeys(sorted(below, key=_order), False)
        elif path.exists():
            files[path] = True
        else:
            raise ReplayError(f"{path}: there is no such file")
    return files


def _order(path: Path) -> list[tuple[int, str]]:
    """`2.json` comes before `10.json`."""
    parts = _NUMBER.split(str(path))
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _parse(path: Path) -> RecordedFile:
    try:
        return parse_file(path.read_bytes())
    except OSError as error:
        raise NotARecording(f"it cannot be read: {error.strerror}") from error


def _make_sources(groups: Mapping[str, Sequence[Path]]) -> list[Source]:
    """With names without the folders that all of them have in common, and without their suffix."""
    names = [Path(group if len(files) > 1 else files[0]) for group, files in groups.items()]
    # A folder may have a dot in its name, too.
    parts = [(name.with_suffix("") if name.suffix in _SUFFIXES else name).parts for name in names]
    common = 0
    while all(len(each) > common + 1 and each[common] == parts[0][common] for each in parts):
        common += 1
    return [
        Source("/".join(name[common:]), (*files,), sum(file.stat().st_size for file in files))
        for name, files in zip(parts, groups.values(), strict=True)
    ]
