"""The recorded cases of pruning as conversations."""

from typing import Any

from gateway.core.history.pivot import Mark
from tests.builders.chat import JSON


class RecordedPruning:
    """A case of vectors.json as chat messages. A recorded message contains its results; here they are
    separate.

    places: the index of message and result in the record, by position. start: the position after the newest
    summary.
    """

    def __init__(self, case: dict[str, Any]) -> None:
        self.messages: list[JSON] = []
        self.tokens: list[int] = []
        self.places: dict[int, list[int]] = {}
        self.marks: list[Mark] = []
        self.start = 0
        for index, message in enumerate(case["messages"]):
            self._add(index, message)

    def _add(self, index: int, message: dict[str, Any]) -> None:
        # A running call has no result yet, so no client sends it.
        tools = [tool for tool in message.get("tools", ()) if tool.get("status") != "running"]
        calls = [{"id": str(at), "function": {"name": tool["name"]}} for at, tool in enumerate(tools)]
        self._say({"role": message["role"], "content": "x", "tool_calls": calls}, 1)
        if message.get("summary"):
            self.start = len(self.messages)
        for at, tool in enumerate(tools):
            self.places[len(self.messages)] = [index, at]
            if tool.get("cleared"):
                self.marks.append(Mark(len(self.messages)))
            self._say({"role": "tool", "tool_call_id": str(at), "content": "x"}, round(tool["chars"] / 4))

    def _say(self, message: JSON, tokens: int) -> None:
        self.messages.append(message)
        self.tokens.append(tokens)
