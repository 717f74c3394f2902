"""What was done to one request, and how long it took: for the log, metrics and traces.

It holds no content. Times are of `time.monotonic()`, and most of them are taken by others anyway.
"""

import time
from typing import TYPE_CHECKING, Final

from gateway.core.sizing.usage import Usage

if TYPE_CHECKING:
    from gateway.traces.spans import OpenSpan

# The plan of a request that the gateway has not read, and of one that no upstream was asked for.
RELAYED_PLAN: Final = "relayed"
LOCAL_PLAN: Final = "local"


class RequestNote:
    """Most requests set few of these, so the rest are values of the class."""

    # The wire format of the body; `other` if it was not read.
    format = "other"
    plan = RELAYED_PLAN
    # What else the log says.
    more = ""
    # The upstream that was asked, by its name in the settings; None if none was.
    upstream: str | None = None
    conversation = ""
    # Estimated tokens of what came and of what was sent; bytes of the body as received.
    received = 0
    sent = 0
    body_bytes = 0
    usage: Usage | None = None
    finish_reason: str | None = None
    # From sending the request to the head of the response. Of several tries the last one counts.
    first_byte_seconds: float | None = None
    # From sending to the last byte, of all tries together.
    upstream_seconds = 0.0
    # Spent on waiting for a compaction, and for a client that does not read.
    waited_seconds = 0.0
    client_seconds = 0.0
    # How often its model searched originals, and what the calls used that the client does not see.
    recall_searches = 0
    recall_usage: Usage | None = None
    # None where traces are off.
    span: "OpenSpan | None" = None

    def __init__(self) -> None:
        self.begun_seconds = time.monotonic()
        # When the whole body was there. A slow upload is not the gateway's time.
        self.read_seconds = self.begun_seconds

    def add_exchange(
        self, upstream: str, begun_seconds: float, head_seconds: float | None, last_seconds: float
    ) -> None:
        """A request that was sent, the head of its response (None: none came), and the last sign of life."""
        self.upstream = upstream
        self.upstream_seconds += last_seconds - begun_seconds
        if head_seconds is not None:
            self.first_byte_seconds = head_seconds - begun_seconds

    def note_recall(self, searches: int, usage: Usage | None) -> None:
        self.recall_searches, self.recall_usage = searches, usage

    def name_plan(self) -> str:
        return self.plan if self.upstream is not None else LOCAL_PLAN

    def count_own_seconds(self, end_seconds: float) -> float:
        """The time that was neither the upstream's, nor a summary's, nor the client's."""
        others = self.upstream_seconds + self.waited_seconds + self.client_seconds
        return max(0.0, end_seconds - self.read_seconds - others)
