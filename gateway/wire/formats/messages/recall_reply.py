"""Messages: the content blocks of one turn, with calls of the gateway's tool taken out."""

from collections.abc import Sequence
from typing import Final

from gateway.core.errors import Unreadable
from gateway.core.history.recall import ReplyMark, make_reply_mark
from gateway.wire.body import JSON_ERRORS, JsonFields, parse_value
from gateway.wire.recall import RECALL_TOOL, RecallCall, RecallRequest

_THOUGHTS: Final = ("thinking", "redacted_thinking")
# The response ended because the model waits for results. Servers that imitate the API give the second one,
# too. A response that was cut off, refused or paused is not continued.
_WAITING: Final = ("tool_use", "end_turn")


# What is raised for a block that is not understood.
BLOCK_ERRORS: Final = (Unreadable, ValueError, KeyError, *JSON_ERRORS)


def parse_block(raw: bytes) -> JsonFields:
    """Raises BLOCK_ERRORS."""
    block = parse_value(raw)
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise ValueError("a block without a type")
    return block


def is_recall(block: JsonFields) -> bool:
    return is_call(block) and block.get("name") == RECALL_TOOL


def is_call(block: JsonFields) -> bool:
    """Of a tool that the client runs, or the gateway."""
    return bool(block["type"] == "tool_use")


def is_thought(block: JsonFields) -> bool:
    return block["type"] in _THOUGHTS


def is_said(block: JsonFields) -> bool:
    """Neither thinking, nor a text of white space alone, which the API refuses in a request."""
    return not is_thought(block) and (block["type"] != "text" or bool(str(block.get("text") or "").strip()))


def mark_blocks(blocks: Sequence[JsonFields]) -> ReplyMark:
    calls = [str(block.get("id")) for block in blocks if is_call(block)]
    texts = [str(block.get("text") or "") for block in blocks if block["type"] == "text"]
    return make_reply_mark(calls, texts)


class ReplyBlocks:
    """Is given the blocks of each response of one turn."""

    def __init__(self) -> None:
        self._shown: list[JsonFields] = []
        # The same, as the upstream sent them.
        self.raws: list[bytes] = []

    @property
    def mark(self) -> ReplyMark:
        return mark_blocks(self._shown)

    def add(self, raws: Sequence[bytes], stop_reason: object) -> RecallRequest | None:
        """The blocks of a response that has ended, or broke off: then stop_reason is None.

        Raises BLOCK_ERRORS; then nothing is added.
        """
        blocks = [(raw, parse_block(raw)) for raw in raws]
        calls = [(raw, block) for raw, block in blocks if is_recall(block)]
        seen = [(raw, block) for raw, block in blocks if not is_recall(block)]
        self._shown += [block for _, block in seen]
        self.raws += [raw for raw, _ in seen]
        found = tuple(RecallCall(str(block.get("id") or ""), _find_query(block)) for _, block in calls)
        if not found or stop_reason not in _WAITING or not all(call.id for call in found):
            return None
        is_parallel = any(is_call(block) for _, block in seen)
        said = [raw for raw, block in seen if is_thought(block) or is_said(block)]
        reply = b"[%s]" % b",".join([*said, *(raw for raw, _ in calls)])
        return RecallRequest(
            calls=found,
            call=b",".join(raw for raw, _ in calls).decode(),
            reply="" if is_parallel else reply.decode(),
            shown=len(self._shown),
            said=sum(map(is_said, self._shown)),
            is_parallel=is_parallel,
        )


def _find_query(block: JsonFields) -> str | None:
    query = block["input"].get("query") if isinstance(block.get("input"), dict) else None
    return query if isinstance(query, str) else None
