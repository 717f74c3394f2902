"""Which call a tool's result answers: the result itself names neither the tool nor the file."""

from typing import Final

from gateway.conversations.reading import Received
from gateway.core.errors import Unreadable
from gateway.core.history.transcript import list_entries
from gateway.core.session.tool_arguments import find_paths, parse_arguments
from gateway.originals.removed import Origin
from gateway.wire.body import JSON_ERRORS

# A call is searched for in this many messages before its result, as for the spans of a conversation.
_MAX_BETWEEN: Final = 200
# Longer ones are not worth keeping beside a result.
_LONGEST_CHARS: Final = 300


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
            arguments = self._read_arguments(position)
            if len(arguments) != len(calls):
                arguments = [""] * len(calls)
            self._read[position] = {
                call.id: Origin(call.tool[:_LONGEST_CHARS], _find_path(said))
                for call, said in zip(calls, arguments, strict=True)
            }
        return self._read[position]

    def _read_arguments(self, position: int) -> list[str]:
        """Of each call of a message."""
        received = self._received
        try:
            entry = received.format.parse_entry(received.raw(position))
        except (Unreadable, *JSON_ERRORS):
            return []
        return [arguments for each in list_entries([entry]) for _, arguments in each.calls]


def _find_path(arguments: str) -> str:
    paths = find_paths(parse_arguments(arguments))
    return paths[0][:_LONGEST_CHARS] if paths else ""
