"""What messages of a conversation said: those of its newest request, those that are not sent any more, and
all of it as an export, with the numbers of its requests.

Originals are also shown of a conversation that an earlier process or another one has served.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from aiohttp import web

from gateway import __version__
from gateway.activity.economics import fill
from gateway.activity.record import ConversationActivity
from gateway.activity.rows import render_second, render_time
from gateway.admin.answers import (
    ArrayLengths,
    FoundPart,
    MessagesPage,
    OriginalList,
    OriginalRow,
    ReceivedRow,
    Removal,
    RequestList,
    RequestRow,
    SearchPage,
    SentRow,
)
from gateway.admin.operations import JSON, NDJSON, MessagesQuery, OriginalsQuery, SearchQuery
from gateway.admin.routing import PRIVATE, AdminRefusal, read_query
from gateway.admin.sources import PageSources, log_view, unknown_conversation
from gateway.admin.summary_pages import list_summaries
from gateway.conversations.branches import NewestRequest
from gateway.core.errors import Overloaded, RequestRefused
from gateway.core.money import render_price
from gateway.originals.removed import RemovedMessages
from gateway.originals.search import Scope, SearchFailed
from gateway.wire.arrays import Arrays, count_messages

# Of all pieces of an answer together: a person reads on, unlike a model with its window.
_MOST_TOKENS: Final = 20_000
# Raised when a reader of this version would misunderstand the lines.
_VERSION: Final = 1
_PIECE_BYTES: Final = 1 << 18
_TYPE: Final = "gateway.export"
# Outside of texts, which have none, a line break in JSON means as much as a space.
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


# Originals


async def list_originals(sources: PageSources, request: web.Request) -> OriginalList:
    identity, query = request.match_info["id"], read_query(request, OriginalsQuery)
    tag = await sources.find_tag(identity)
    listing = await sources.originals.load_lists(tag or "", identity, query.limit, query.cursor)
    if not listing.lists and sources.activity.find(identity) is None:
        raise unknown_conversation()
    return OriginalList(
        id=identity,
        taken=[_describe_removed(removed) for removed in listing.lists],
        left_off=listing.left_off,
        next=listing.last if listing.left_off else None,
    )


def _describe_removed(removed: RemovedMessages) -> Removal:
    rows = [fill(OriginalRow, each, bytes=each.size_bytes) for each in removed.originals]
    return Removal(
        when=render_second(removed.created_seconds),
        kind=removed.kind,
        bytes=sum(row.bytes for row in rows),
        messages=rows,
    )


async def show_original(sources: PageSources, request: web.Request) -> web.Response:
    identity, digest = request.match_info["id"], request.match_info["digest"]
    sources.check_texts(sources.activity.find(identity))
    tag = await sources.find_tag(identity)
    raw = await sources.originals.load(tag or "", identity, digest)
    if raw is None:
        raise AdminRefusal(404, "no such original of this conversation is kept")
    log_view(request, identity, "original")
    return web.Response(body=raw, content_type=JSON, headers=PRIVATE)


async def search_originals(sources: PageSources, request: web.Request) -> SearchPage:
    """Pieces, the best first. Raises AdminRefusal (400, 403, 404, 503)."""
    identity = request.match_info["id"]
    known = sources.activity.find(identity)
    sources.check_texts(known)
    tag = await sources.find_tag(identity)
    if tag is None:
        raise unknown_conversation()
    query = read_query(request, SearchQuery)
    scopes = [Scope(identity), *await _find_inherited(sources, known)]
    try:
        found = await sources.search.search(tag, scopes, query.q, most=query.limit, max_tokens=_MOST_TOKENS)
    except SearchFailed as error:
        sources.metrics.count_search("admin", "failed")
        raise AdminRefusal(503, f"the originals could not be searched: {error}") from error
    sources.metrics.count_search("admin", "found" if found else "nothing")
    if found:
        log_view(request, identity, "search")
    parts = [fill(FoundPart, piece, when=render_second(piece.time_seconds)) for piece in found]
    return SearchPage(id=identity, found=parts)


async def _find_inherited(sources: PageSources, known: ConversationActivity | None) -> list[Scope]:
    """A branch uses a summary that was made in another conversation: its messages are kept there."""
    if known is None or known.pivot is None:
        return []
    pivot = await sources.state.pivots.load(known.owner, known.pivot.key)
    if pivot is None or pivot.conversation in ("", known.id):
        return []
    end = pivot.covers, pivot.key
    return [Scope(pivot.conversation, lambda position, link: (position + 1, link) == end)]


# The newest request


async def list_messages(sources: PageSources, request: web.Request) -> web.StreamResponse:
    """The array as received beside the array as sent. Sent while its memory is still counted."""
    known = sources.find_shown(request)
    query = read_query(request, MessagesQuery)
    newest = sources.find_newest(known)
    try:
        async with sources.find_serving().arrays.show(newest, query.start, query.limit) as shown:
            log_view(request, known.id, "messages")
            body = msgspec.json.encode(_describe_arrays(known.id, newest, shown))
            response = web.Response(body=body, content_type=JSON, headers=PRIVATE)
            await response.prepare(request)
            await response.write_eof()
            return response
    except Overloaded as error:
        raise AdminRefusal(503, str(error), {"Retry-After": "1"}) from error
    except RequestRefused as error:
        raise AdminRefusal(503, str(error)) from error


def _describe_arrays(identity: str, newest: NewestRequest, arrays: Arrays) -> MessagesPage:
    received = [
        fill(
            ReceivedRow,
            row,
            bytes=len(row.raw or b""),
            message=msgspec.Raw(row.raw) if row.raw is not None else None,
        )
        for row in arrays.received
    ]
    sent = [fill(SentRow, row, message=msgspec.Raw(row.raw)) for row in arrays.sent]
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


# The export


async def list_requests(sources: PageSources, request: web.Request) -> RequestList:
    known = sources.find(request)
    rows = [
        fill(
            RequestRow,
            point,
            at=render_time(point.at_seconds),
            soft=point.soft or None,
            hard=point.hard or None,
        )
        for point in known.series.list_points()
    ]
    return RequestList(id=known.id, requests=rows, left_off=known.totals.requests - len(rows))


async def export(sources: PageSources, request: web.Request) -> web.StreamResponse:
    """One conversation as lines of JSON, for `refold replay`: its newest body, requests and summaries."""
    known = sources.find_shown(request)
    sources.find_newest(known)
    requests, summaries = await list_requests(sources, request), await list_summaries(sources, request)
    # Looked up last: while the rest was loaded, it may have had to make room.
    newest = sources.find_newest(known)
    log_view(request, known.id, "export")
    limits, price = newest.turn.limits, sources.activity.find_price(newest.turn)
    first = {
        "type": _TYPE,
        "version": _VERSION,
        "gateway": __version__,
        "id": known.id,
        "model": known.model,
        "format": newest.turn.received.format.name,
        "limits": {"context": limits.context, "input": limits.input, "output": limits.output},
        "price": render_price(price) if price is not None else None,
    }
    lines: list[Sequence[bytes]] = [
        (msgspec.json.encode(first),),
        (b'{"type":"body","body":', newest.turn.received.body.data, b"}"),
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
