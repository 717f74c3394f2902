"""Carries out what a user asks of the gateway itself, and responds in the upstream's place.

Nothing of it goes upstream but the summary call. `core.compaction.manual` says which texts are commands.
"""

import asyncio
import time
from typing import Final

from gateway.compaction.manual import ManualCompaction
from gateway.conversations.reading import Received
from gateway.conversations.turn import Turn
from gateway.core.compaction.manual import (
    Failed,
    InProgress,
    ManualOutcome,
    describe_outcome,
    may_be_command,
    parse_compact,
)
from gateway.headers import X_GATEWAY_CONVERSATION
from gateway.http.reply import Reply
from gateway.settings import Settings
from gateway.wire.canonical import without_ephemeral_blocks
from gateway.wire.format import LocalResponse

# The id is taken from the chain, so a request that is sent again gets the same response id.
_ID_DIGITS: Final = 24
# Every message with a "/compact" contains these bytes, however a client writes it as JSON.
_TRACE: Final = b"compact"
# A command with its longest instructions and all reminders that a client may add is far shorter.
_LONGEST_BYTES: Final = 1 << 20


class Commands:
    def __init__(self, settings: Settings, manual: ManualCompaction) -> None:
        self._shows_headers = settings.response_headers
        self._manual = manual

    async def run(self, turn: Turn, instructions: str, client: Reply) -> None:
        """Waits no longer than a request waits for its summaries. A compaction that takes longer goes on."""
        headers = {X_GATEWAY_CONVERSATION: turn.conversation_id} if self._shows_headers else {}
        task = self._manual.compact(turn, instructions)
        seconds = turn.policy.summary.deadline_seconds
        is_done = task is not None and await client.wait_for(task, headers, seconds)
        outcome = _read_outcome(task) if task is not None and is_done else InProgress()
        response = LocalResponse(
            id=turn.received.conversation.key.hex()[:_ID_DIGITS],
            model=turn.model,
            created_seconds=int(time.time()),
            text=describe_outcome(outcome),
            is_streamed=turn.received.body.envelope.is_streaming,
        )
        await client.reply(turn.received.format.render_local_response(response), headers)


def _read_outcome(task: "asyncio.Task[ManualOutcome]") -> ManualOutcome:
    """A tenant may be deleted, or the gateway may stop, while it is made."""
    return Failed("it was cancelled") if task.cancelled() else task.result()


def find_command(received: Received) -> str | None:
    """The instructions of a `/compact` in the last message; None if that is not a command.

    If the upstream stores the conversation there are no commands: it would not know our response, and would
    refuse every later request that names it.
    """
    messages, envelope = received.conversation.messages, received.body.envelope
    if envelope.is_partial or envelope.is_kept or not (messages and may_be_command(messages[-1])):
        return None
    raw = received.raw(len(messages) - 1)
    if len(raw) > _LONGEST_BYTES or _TRACE not in raw:
        return None
    return parse_compact(without_ephemeral_blocks(received.format.parse_entry(raw).text))
