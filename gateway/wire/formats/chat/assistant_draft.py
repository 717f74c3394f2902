"""The assistant's message as the upstream meant it, put together from the pieces of a stream.

Servers of models that think want their thinking back with each message that calls a tool.
"""

from collections.abc import Iterable
from typing import Final

from gateway.wire.body import JsonFields
from gateway.wire.canonical import flatten_content
from gateway.wire.raw_json import encode_json, join_array, join_halves

REASONING_KEYS: Final = (
    *("reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "reasoning_opaque"),
    *("thinking", "thinking_blocks", "thought_signature", "extra_content"),
)
# Pieces of one item of a list are joined if these are the same.
_SAME_KEYS: Final = ("type", "index")
_JOINED_KEYS: Final = ("text", "summary", "thinking", "data")


class AssistantDraft:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: dict[str, list[object]] = {}

    def add(self, delta: JsonFields) -> None:
        self._texts += flatten_content(delta.get("content")).texts
        for key in REASONING_KEYS:
            if delta.get(key):
                self._reasoning.setdefault(key, []).append(delta[key])

    @property
    def text(self) -> str:
        return join_halves("".join(self._texts))

    def render(self, calls: Iterable[bytes]) -> bytes:
        """With these calls. Texts without any letter are left out: some servers refuse them."""
        text = self.text
        reasoning = {key: _join(pieces) for key, pieces in self._reasoning.items()}
        head = encode_json({"role": "assistant", "content": text if text.strip() else None, **reasoning})
        return head[:-1] + b',"tool_calls":' + join_array(calls) + b"}"


def _join(pieces: list[object]) -> object:
    """Texts are joined, items of lists too; of other values the last one counts."""
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        return join_halves("".join(texts))
    lists = [piece for piece in pieces if isinstance(piece, list)]
    if len(lists) == len(pieces):
        return _join_items([item for piece in lists for item in piece])
    return pieces[-1]


def _join_items(items: list[object]) -> list[object]:
    """Of a list whose items come in pieces, one behind the other."""
    joined: list[object] = []
    for item in items:
        last = joined[-1] if joined else None
        if isinstance(item, dict) and isinstance(last, dict) and _are_one(last, item):
            joined[-1] = _add(last, item)
        else:
            joined.append(item)
    return joined


def _are_one(last: JsonFields, item: JsonFields) -> bool:
    return "index" in item and all(last.get(key) == item.get(key) for key in _SAME_KEYS)


def _add(last: JsonFields, item: JsonFields) -> JsonFields:
    added = dict(last)
    for key, value in item.items():
        before = added.get(key)
        if key in _JOINED_KEYS and isinstance(before, str) and isinstance(value, str):
            added[key] = before + value
        elif value is not None:
            added[key] = value
    return added
