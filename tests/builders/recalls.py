"""Recalls, and a syntax for them that is easy to see through."""

from collections.abc import Sequence
from typing import Any

from gateway.core.history.conversation import Conversation
from gateway.core.history.recall import Recall, RecallRound, ReplyMark
from gateway.wire.recall import Insertion, RecallSyntax, ReplyStitcher
from gateway.wire.request import RequestBody


def make_recall(conversation: Conversation, length: int, **fields: Any) -> Recall:
    """Of the reply at `length`."""
    defaults: dict[str, Any] = {
        "owner": "t",
        "position": length,
        "kind": "tool",
        "rounds": (RecallRound(call='{"role":"user","content":"CALL"}', results="RESULTS"),),
        "tokens": 30,
        "reply": ReplyMark(text="shown"),
        "created_seconds": 0.0,
    }
    return Recall(chain=conversation.chain[length].hex(), length=length, **(defaults | fields))


def _splice(
    body: RequestBody, first: int, end: int, rounds: Sequence[RecallRound], mark: ReplyMark
) -> list[Insertion] | None:
    """The calls before the reply, and the results inside the message behind it, if there is one."""
    if mark.text != "shown":
        return None
    found = [Insertion(body.places[first].start, f"{each.call},".encode()) for each in rounds]
    if end < len(body.places):
        inside = body.places[end].end - 1
        found += [Insertion(inside, f',"_":"{each.results}"'.encode()) for each in rounds]
    return found


def _make_stitcher() -> ReplyStitcher:
    raise NotImplementedError


SPLICING = RecallSyntax(
    may_offer=lambda body: False,
    make_tool=lambda body: Insertion(0, b""),
    make_stitcher=_make_stitcher,
    render_results=lambda request, texts: "",
    continue_reply=lambda body, answered: [],
    splice=_splice,
    render_exchange=lambda asked, said: b"",
)
