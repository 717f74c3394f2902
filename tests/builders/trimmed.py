"""Chat conversations of which a client has dropped messages, recognized as what they are a part of."""

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.conversations.reading import Received
from gateway.core.history.ends import HistorySource, continue_history, find_end_key, make_history_end
from tests.builders.chat import read
from tests.decisions.builders import JSON, render

_SCOPE = HistorySource(b"scope", is_named=True)
_FILLER = "word " * 120


def say(turns: int, name: str = "t") -> list[JSON]:
    """A task, and so many turns of a call, its result and a word of the user."""
    messages: list[JSON] = [{"role": "user", "content": f"Task {name}"}]
    for number in range(turns):
        identity = f"{name}:{number}"
        function = {"name": "look", "arguments": "{}"}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": identity, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": identity, "content": f"{identity} {_FILLER}"},
            {"role": "assistant", "content": f"Done {identity}"},
            {"role": "user", "content": f"Next after {identity}"},
        ]
    return messages


def continue_trimmed(before: Sequence[JSON], sent: Sequence[JSON]) -> Received:
    """A received request as the continuation of an earlier one; it fails if it is not recognized."""
    known = read(render(before)).conversation
    key = find_end_key(_SCOPE, known)
    received = read(render(sent))
    ends = [at for at in range(len(sent)) if list(sent[:at])[-4:] == list(before)[-4:]]
    assert key is not None and ends
    found = continue_history(make_history_end("t", key, known), received.conversation, ends[-1], _SCOPE)
    assert found is not None
    return replace(received, conversation=found)
