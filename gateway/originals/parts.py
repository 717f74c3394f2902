"""An original as readable parts: each text, result and call of a message, with its tool and its files."""

import json
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gateway.core.errors import Unreadable
from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.core.session.tool_arguments import find_paths, parse_arguments
from gateway.originals.removed import Origin
from gateway.wire.body import JSON_ERRORS
from gateway.wire.format import Format
from gateway.wire.registry import FORMATS

# A message may have 64 MB. What is behind this many characters is not searched.
_MOST_CHARS: Final = 4_000_000
_LONGEST_NAME_CHARS: Final = 300
_SEPARATOR: Final = "\n\n"


class Part(NamedTuple):
    """start: of its text in that of the message. paths: all that a call names, of which `path` is the first;
    empty for a result.
    """

    start: int
    role: str
    tool: str | None
    path: str | None
    text: str
    paths: tuple[str, ...] = ()


def read_parts(format_name: str, raw: bytes, origins: Sequence[Origin]) -> list[Part]:
    """In order, never overlapping. Empty if the message holds no text, or is not understood.

    format_name: empty if it is not known. origins: of the results in the message, as far as known.
    """
    if not raw:
        return []
    known = FORMATS.get(format_name)
    for wire_format in [known] if known is not None else _guess(raw):
        try:
            # What the other function can read is what this one accepts.
            wire_format.parse_message(raw, b"")
            entries = list_entries([wire_format.parse_entry(raw)])
        except (Unreadable, *JSON_ERRORS):
            continue
        return list(_place(_list_parts(entries, origins)))
    return []


def join_texts(parts: Sequence[tuple[int, str]]) -> str:
    """The text of a message from its parts or pieces: the start and text of each, in order."""
    text, size = list[str](), 0
    for start, said in parts:
        gap = start - size
        text.append(_SEPARATOR[:gap] if 0 < gap <= len(_SEPARATOR) else "")
        text.append(said)
        size = start + len(said)
    return "".join(text)


def _guess(raw: bytes) -> list[Format]:
    """Formats that lists of earlier versions do not name, the likeliest first."""
    if b'"tool_use' in raw or b'"tool_result"' in raw:
        order = ("messages", "chat", "responses")
    elif b'"role"' in raw and b'put_text"' not in raw:
        order = ("chat", "messages", "responses")
    else:
        order = ("responses", "chat", "messages")
    return [FORMATS[name] for name in order]


def _list_parts(entries: Sequence[TranscriptEntry], origins: Sequence[Origin]) -> Iterator[Part]:
    """Their starts are not known yet."""
    answers = iter(origins)
    for entry in entries:
        origin = next(answers, Origin()) if entry.is_result else Origin()
        if entry.text.strip():
            role = "tool" if entry.is_result else entry.role
            yield Part(0, role, origin.tool or None, origin.path or None, entry.text)
        for tool, arguments in entry.calls:
            value = parse_arguments(arguments)
            paths = tuple(path[:_LONGEST_NAME_CHARS] for path in find_paths(value))
            text = f"{tool}\n{_render_arguments(value) if value is not None else arguments}".strip()
            name = tool[:_LONGEST_NAME_CHARS] or None
            yield Part(0, entry.role, name, paths[0] if paths else None, text, paths)


def _place(parts: Iterator[Part]) -> Iterator[Part]:
    start = 0
    for part in parts:
        text = _make_valid(part.text[: _MOST_CHARS - start])
        if not text:
            return
        yield part._replace(start=start, text=text)
        start += len(text) + len(_SEPARATOR)


def _render_arguments(value: object) -> str:
    """A line for each field, with texts as they are: in JSON, a word behind a line end would begin with n."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "\n".join(f"{key}: {_render_arguments(field)}" for key, field in value.items())


def _make_valid(text: str) -> str:
    """Without halves of characters, which no database takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
