"""What the pages need that show, change or delete what a conversation says."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
from aiohttp import web

from gateway.activity.book import ActivityBook
from gateway.activity.record import ConversationActivity
from gateway.admin.history_pages import unknown_conversation
from gateway.admin.texts import TextAccess
from gateway.compaction.edit import SummaryEditor
from gateway.conversations.branches import Branches, NewestRequest
from gateway.purge import PurgeCount
from gateway.reporting.compaction_log import CompactionLogWriter
from gateway.sessions.keeper import SessionKeeper
from gateway.state.pivots import Pivots
from gateway.wire.arrays import CountedArrays


class ArrayShower(Protocol):
    """See `pipeline.array`."""

    def show(
        self, newest: NewestRequest, start: int, most: int
    ) -> AbstractAsyncContextManager[CountedArrays]: ...


class TextSources(msgspec.Struct, frozen=True, kw_only=True):
    """find_editor, find_arrays: by the settings that hold now."""

    activity: ActivityBook
    branches: Branches
    texts: TextAccess
    compaction_log: CompactionLogWriter
    sessions: SessionKeeper
    pivots: Pivots
    find_editor: Callable[[], SummaryEditor]
    find_arrays: Callable[[], ArrayShower]
    # Deletes a conversation, by the tag of its owner and its id.
    delete: Callable[[str, str], Awaitable[PurgeCount]]

    def find(self, request: web.Request) -> ConversationActivity:
        """Raises AdminRefusal (404)."""
        known = self.activity.find(request.match_info["id"])
        if known is None:
            raise unknown_conversation()
        return known
