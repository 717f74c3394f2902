"""Rows of all workers: the newest of each conversation."""

import asyncio

from msgspec import to_builtins
from msgspec.structs import replace

from gateway.activity.rows import Row, make_row
from gateway.admin.merged.activity import take_all_rows
from gateway.admin.merged.live_workers import LiveWorkers
from gateway.admin.merged.ranking import merge_rows
from gateway.admin.worker_activity import CHANGED_PATH
from tests.activity.talk import make_book, plan, turn
from tests.toy.workers import running_toys


def make(identity: str, last_seen: str, requests: int = 1) -> Row:
    book = make_book()
    book.note_request(turn(identity), plan(), None)
    activity = book.find(identity)
    assert activity is not None
    return replace(make_row(activity), last_seen=last_seen, requests=requests)


def test_the_newest_row_of_a_conversation_wins_and_comes_first() -> None:
    rows = [make("a", "2026-01-01T00:00:01.000+00:00"), make("b", "2026-01-01T00:00:02.000+00:00")]
    newer = make("a", "2026-01-01T00:00:03.000+00:00", requests=2)
    assert merge_rows([*rows, newer]) == merge_rows([newer, *rows]) == [newer, rows[1]]


async def test_a_worker_that_says_nothing_sensible_is_left_out() -> None:
    async with running_toys(3) as (live, toys):
        row = make("a", "2026-01-01T00:00:01.000+00:00")
        toys[0].pages[CHANGED_PATH] = {"type": "activity", "conversations": to_builtins([row])}
        toys[1].pages[CHANGED_PATH] = {"type": "activity", "conversations": [{"id": 5}]}
        async with asyncio.timeout(30):
            assert await take_all_rows(live) == [row]
    assert await take_all_rows(LiveWorkers()) == []
