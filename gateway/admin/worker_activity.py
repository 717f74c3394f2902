"""Which conversations have changed in one worker, for its supervisor, which asks while the page is open."""

from typing import Final

import msgspec
from aiohttp import web

from gateway.activity.book import ActivityBook
from gateway.activity.rows import ActivityEvent
from gateway.reporting.activity_feed import take_rows

CHANGED_PATH: Final = "/api/activity/changed"


class WorkerActivity:
    def __init__(self, book: ActivityBook) -> None:
        self._book = book

    def routes(self) -> list[web.RouteDef]:
        return [web.get(CHANGED_PATH, self._take_changed)]

    async def _take_changed(self, _: web.Request) -> web.Response:
        """What has changed since this was asked before."""
        event = ActivityEvent(conversations=await take_rows(self._book))
        return web.Response(body=msgspec.json.encode(event), content_type="application/json")
