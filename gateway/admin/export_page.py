"""One conversation as lines of JSON, for `refold replay`: its newest body, requests and summaries."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web

from gateway import __version__
from gateway.admin.answers import RequestList, SummaryList
from gateway.admin.array_page import NOT_IN_MEMORY
from gateway.admin.operations import NDJSON
from gateway.admin.problems import AdminRefusal
from gateway.admin.routing import PRIVATE
from gateway.admin.text_sources import TextSources
from gateway.admin.texts import log_view
from gateway.core.money import render_price

# Raised when a reader of this version would misunderstand the lines.
VERSION: Final = 1
_PIECE_BYTES: Final = 1 << 18
_TYPE: Final = "gateway.export"
# Outside of texts, which have none, a line break in JSON means as much as a space.
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


class ExportPage:
    """list_requests, list_summaries: answer those operations."""

    def __init__(
        self,
        sources: TextSources,
        list_requests: Callable[[web.Request], Awaitable[RequestList]],
        list_summaries: Callable[[web.Request], Awaitable[SummaryList]],
    ) -> None:
        self._sources = sources
        self._list_requests = list_requests
        self._list_summaries = list_summaries

    async def export(self, request: web.Request) -> web.StreamResponse:
        known = self._sources.find(request)
        self._sources.texts.check(known)
        if self._sources.branches.find_newest(known.id) is None:
            raise AdminRefusal(409, NOT_IN_MEMORY)
        requests, summaries = await self._list_requests(request), await self._list_summaries(request)
        # Looked up last: while the rest was loaded, it may have had to make room.
        newest = self._sources.branches.find_newest(known.id)
        if newest is None:
            raise AdminRefusal(409, NOT_IN_MEMORY)
        log_view(request, known.id, "export")
        received, limits = newest.turn.received, newest.turn.limits
        price = self._sources.activity.find_price(newest.turn)
        first = {
            "type": _TYPE,
            "version": VERSION,
            "gateway": __version__,
            "id": known.id,
            "model": known.model,
            "format": received.format.name,
            "limits": {"context": limits.context, "input": limits.input, "output": limits.output},
            "price": render_price(price) if price is not None else None,
        }
        lines: list[Sequence[bytes]] = [
            (msgspec.json.encode(first),),
            (b'{"type":"body","body":', received.body.data, b"}"),
            *((_render("request", row),) for row in requests.requests),
            *((_render("summary", row),) for row in summaries.summaries),
        ]
        response = web.StreamResponse(headers={**PRIVATE, "Content-Type": NDJSON})
        # The client may have gone.
        with suppress(ConnectionError):
            await response.prepare(request)
            for piece in _list_pieces(lines):
                await response.write(piece)
            await response.write_eof()
        return response


def _list_pieces(lines: Sequence[Sequence[bytes]]) -> Iterator[bytes]:
    """A body may have 64 MB: it is never copied as a whole, and no piece takes long."""
    for parts in lines:
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                yield part[start : start + _PIECE_BYTES].translate(_ONE_LINE)
        yield b"\n"


def _render(kind: str, row: msgspec.Struct) -> bytes:
    return msgspec.json.encode({"type": kind, **msgspec.structs.asdict(row)})
