"""The newest request of a conversation: the array as received beside the array as sent."""

from typing import Final

import msgspec
from aiohttp import web

from gateway.activity.rows import render_time
from gateway.admin.answers import ArrayLengths, MessagesPage, ReceivedRow, SentRow
from gateway.admin.operations import JSON, MessagesQuery
from gateway.admin.problems import AdminRefusal
from gateway.admin.routing import PRIVATE, read_query
from gateway.admin.text_sources import TextSources
from gateway.admin.texts import log_view
from gateway.conversations.branches import NewestRequest
from gateway.core.errors import Overloaded, RequestRefused
from gateway.wire.arrays import CountedArrays, count_messages

NOT_IN_MEMORY: Final = (
    "The newest request of this conversation is not in memory here. It is again after the next one."
)


class ArrayPage:
    def __init__(self, sources: TextSources) -> None:
        self._sources = sources

    async def list_messages(self, request: web.Request) -> web.StreamResponse:
        """Sent while its memory is still counted."""
        known = self._sources.find(request)
        self._sources.texts.check(known)
        query = read_query(request, MessagesQuery)
        newest = self._sources.branches.find_newest(known.id)
        if newest is None:
            raise AdminRefusal(409, NOT_IN_MEMORY)
        try:
            async with self._sources.find_arrays().show(newest, query.start, query.limit) as shown:
                log_view(request, known.id, "messages")
                page = _describe(known.id, newest, shown)
                body = msgspec.json.encode(page)
                response = web.Response(body=body, content_type=JSON, headers=PRIVATE)
                await response.prepare(request)
                await response.write_eof()
                return response
        except Overloaded as error:
            raise AdminRefusal(503, str(error), {"Retry-After": "1"}) from error
        except RequestRefused as error:
            raise AdminRefusal(503, str(error)) from error


def _describe(identity: str, newest: NewestRequest, shown: CountedArrays) -> MessagesPage:
    arrays, tokens = shown.arrays, shown.tokens
    received = [
        ReceivedRow(
            position=row.position,
            role=row.role,
            bytes=len(row.raw or b""),
            tokens=count,
            fate=row.fate,
            message=msgspec.Raw(row.raw) if row.raw is not None else None,
        )
        for row, count in zip(arrays.received, tokens.received, strict=True)
    ]
    sent = [
        SentRow(
            position=row.position,
            kind=row.kind,
            role=row.role,
            tokens=count,
            message=msgspec.Raw(row.raw),
        )
        for row, count in zip(arrays.sent, tokens.sent, strict=True)
    ]
    total = count_messages(newest.turn.received.conversation, newest.plan.view)
    return MessagesPage(
        id=identity,
        at=render_time(newest.seen_seconds),
        format=newest.turn.received.format.name,
        total=ArrayLengths(received=total[0], sent=total[1] + arrays.inserted),
        received=received,
        sent=sent,
        next=arrays.end,
    )
