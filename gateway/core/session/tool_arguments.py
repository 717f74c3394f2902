"""Finds files and texts in the arguments of a tool call.

Arguments are usually JSON, but that is not guaranteed. Knows the names that agents use for such fields, not
their tools.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

# Spelled in any way, such as file_path, filePath or FilePath.
_PATH_KEYS: Final = frozenset(
    {"path", "paths", "file", "files", "filepath", "filepaths", "filename", "notebookpath", "targetfile"}
    | {"absolutepath", "relativepath"}
)
# A longer value is a text in a field of such a name.
_LONGEST_PATH_CHARS: Final = 300
# The patch format of Codex writes this before each file.
_PATCHED: Final = re.compile(
    r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (\S[^\r\n]{0,299})$", re.MULTILINE
)


def parse_arguments(arguments: str) -> object | None:
    """The parsed value, or None if the arguments are not JSON."""
    try:
        value: object = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value


def find_paths(value: object) -> tuple[str, ...]:
    """Files in fields with a known name, and files that a patch changes; each once, in order."""
    found = dict.fromkeys(
        path
        for fields in _iter_values(value)
        if isinstance(fields, dict)
        for key, field in fields.items()
        if key.replace("_", "").casefold() in _PATH_KEYS
        for path in _list_texts(field)
        if path.strip(" ./\\") and len(path) <= _LONGEST_PATH_CHARS and path.isprintable()
    )
    for text in iter_strings(value):
        if "*** " in text:
            found.update(dict.fromkeys(path.strip() for path in _PATCHED.findall(text)))
    return tuple(found)


def iter_strings(value: object) -> Iterator[str]:
    """Every text in a value, in order, without the names of fields."""
    yield from (item for item in _iter_values(value) if isinstance(item, str))


def _iter_values(value: object) -> Iterator[object]:
    """Every value in a value, outer ones before inner ones, in order."""
    pending = [value]
    while pending:
        item = pending.pop()
        yield item
        if isinstance(item, dict):
            pending.extend(reversed(item.values()))
        elif isinstance(item, list):
            pending.extend(reversed(item))


def _list_texts(value: object) -> list[str]:
    """The text itself, or the texts of a list."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str)]
