"""Which conversations have changed in any worker since this was asked before."""

import msgspec

from gateway.activity.rows import ActivityEvent, Row
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.ranking import merge_rows
from gateway.admin.merged.worker_client import WorkerPage, ask_all
from gateway.admin.worker_activity import CHANGED_PATH


async def take_all_rows(workers: LiveWorkers) -> list[Row]:
    """A worker that does not answer within a second is left out: its rows come with their next change."""
    answers = await ask_all(workers.sockets, CHANGED_PATH)
    pages = [answer for answer in answers if isinstance(answer, WorkerPage) and answer.status == 200]
    return merge_rows(row for page in pages for row in _parse_rows(page.body))


def _parse_rows(body: bytes) -> list[Row]:
    try:
        return list(msgspec.json.decode(body, type=ActivityEvent).conversations)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
