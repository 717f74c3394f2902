"""Reads a body as a request, and writes out the responses that it names.

Much new material is read in a thread.
"""

from gateway.bounds.lanes import Lanes
from gateway.conversations.branches import Branches
from gateway.conversations.reading import Received
from gateway.conversations.stored_responses import ResponseRecorder, StoredResponses
from gateway.wire.format import Format


class BodyReader:
    def __init__(self, branches: Branches, stored: StoredResponses, lanes: Lanes) -> None:
        self.branches = branches
        self._stored = stored
        self.lanes = lanes

    def clear(self) -> None:
        """What was named is not kept any more."""
        self._stored.clear()

    async def read(
        self, owner: str, wire_format: Format, data: bytes, upstream: str
    ) -> tuple[Received, ResponseRecorder | None]:
        """Raises Unreadable, and BeyondBounds for a body that holds more than is read.

        Also returns the recorder for the response; None if no later request may name it.
        Only some formats let a request name earlier responses instead of repeating them.
        """
        received = await self.branches.read_in(self.lanes, owner, wire_format, data)
        if wire_format.stored_history is None:
            return received, None
        return await self._stored.write_out(received, wire_format.stored_history, upstream, self.lanes)
