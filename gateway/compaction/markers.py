"""Markers of compactions: stored before the work begins, so that it is done after a stop of the gateway."""

import time

from gateway.conversations.turn import Turn
from gateway.core.compaction.request import CompactionReason
from gateway.core.history.head import Head
from gateway.state import State
from gateway.state.kinds import Marker


def save_marker(state: State, turn: Turn, reason: CompactionReason, instructions: str = "") -> Marker:
    """Saves a marker for a compaction, with the head that leads to it after a crash."""
    conversation = turn.received.conversation
    head = state.heads.find(conversation, turn.scope)
    if head is not None:
        state.heads.save(head)
    key, length = conversation.key.hex(), len(conversation.messages)
    marker = _make_marker(turn.owner, key, length, reason, instructions, turn.conversation_id)
    state.tasks.save_marker(marker)
    return marker


def make_marker(head: Head, reason: CompactionReason, instructions: str) -> Marker:
    """For the next request behind this head."""
    return _make_marker(head.owner, head.key, head.length, reason, instructions, head.conversation)


def _make_marker(
    owner: str, key: str, length: int, reason: CompactionReason, instructions: str, conversation_id: str
) -> Marker:
    return Marker(
        owner=owner,
        key=key,
        length=length,
        auto=reason is not CompactionReason.MANUAL,
        reason=reason,
        created_seconds=time.time(),
        instructions=instructions,
        conversation=conversation_id,
    )
