"""An original as readable parts: each text, result and call of a message, with its tool and its files; and
which call a result answers, because it names neither the tool nor the file itself.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from gateway.conversations.reading import Received
from gateway.core.errors import Unreadable
from gateway.core.history.transcript import TranscriptEntry, list_entries
from gateway.core.session.tool_arguments import find_paths, parse_arguments
from gateway.originals.removed import Origin
from gateway.wire.body import JSON_ERRORS
from gateway.wire.registry import FORMATS

# A message may have 64 MB. What is behind this many characters is not searched.
_MOST_CHARS: Final = 4_000_000
_LONGEST_NAME_CHARS: Final = 300
_SEPARATOR: Final = "\n\n"
# A call is searched for in this many messages before its result, as for the spans of a conversation.
_MAX_BETWEEN: Final = 200


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

    origins: of the results in the message, as far as known.
    """
    wire_format = FORMATS.get(format_name)
    if not raw or wire_format is None:
        return []
    try:
        # What the other function can read is what this one accepts.
        wire_format.parse_message(raw, b"")
        entries = list_entries([wire_format.parse_entry(raw)])
    except (Unreadable, *JSON_ERRORS):
        return []
    return list(_place(_list_parts(entries, origins)))


def join_texts(parts: Sequence[Part]) -> str:
    """The text of a message."""
    return _SEPARATOR.join(part.text for part in parts)


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
        # Without halves of characters, which no database takes.
        text = part.text[: _MOST_CHARS - start].encode("utf-8", "replace").decode()
        if not text:
            return
        yield part._replace(start=start, text=text)
        start += len(text) + len(_SEPARATOR)


def _render_arguments(value: object) -> str:
    """A line for each field, with texts as they are: in JSON, a word behind a line end would begin with n."""
    if not isinstance(value, dict):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return "\n".join(f"{key}: {_render_arguments(field)}" for key, field in value.items())


class OriginFinder:
    """For one request; reads each call once."""

    def __init__(self, received: Received) -> None:
        self._received = received
        self._read: dict[int, dict[str, Origin]] = {}

    def find(self, position: int) -> tuple[Origin, ...]:
        """Of each result of the message at a position, in their order."""
        results = self._received.conversation.messages[position].results
        return tuple([self._find_call(position, answered) for answered in results])

    def _find_call(self, position: int, answered: str) -> Origin:
        messages = self._received.conversation.messages
        for at in range(position - 1, max(-1, position - 1 - _MAX_BETWEEN), -1):
            if any(call.id == answered for call in messages[at].calls):
                return self._read_calls(at).get(answered, Origin())
        return Origin()

    def _read_calls(self, position: int) -> dict[str, Origin]:
        if position not in self._read:
            calls = self._received.conversation.messages[position].calls
            entries = list_entries([self._received.entry(position)])
            arguments = [said for entry in entries for _, said in entry.calls]
            if len(arguments) != len(calls):
                arguments = [""] * len(calls)
            self._read[position] = {
                call.id: Origin(call.tool[:_LONGEST_NAME_CHARS], _find_path(said))
                for call, said in zip(calls, arguments, strict=True)
            }
        return self._read[position]


def _find_path(arguments: str) -> str:
    paths = find_paths(parse_arguments(arguments))
    return paths[0][:_LONGEST_NAME_CHARS] if paths else ""
