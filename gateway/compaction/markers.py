"""Markers of compactions: stored before the work begins, so that it is done after a stop of the gateway."""

import time

from gateway.conversations.turn import Turn
from gateway.core.compaction.request import CompactionReason
from gateway.state import State
from gateway.state.records import Marker


def save_marker(state: State, turn: Turn, reason: CompactionReason, instructions: str = "") -> Marker:
    """Saves a marker for a compaction, with the head that leads to it after a crash."""
    conversation = turn.received.conversation
    head = state.heads.find(conversation, turn.scope)
    if head is not None:
        state.heads.save(head)
    marker = make_marker(turn.owner, conversation.key.hex(), len(conversation.messages), reason, instructions)
    state.tasks.save_marker(marker)
    return marker


def make_marker(
    owner: str, key: str, length: int, reason: CompactionReason, instructions: str = ""
) -> Marker:
    return Marker(
        owner=owner,
        key=key,
        length=length,
        auto=reason is not CompactionReason.MANUAL,
        reason=reason,
        created_seconds=time.time(),
        instructions=instructions,
    )
