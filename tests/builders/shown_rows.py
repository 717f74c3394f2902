"""A row of the list of conversations, with numbers to show."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.activity.rows import Row, render_time

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)

_PLAIN = Row(
    id="0123456789abcdef",
    parent=None,
    tenant="team-a",
    session=None,
    purpose="main",
    model="toy-1",
    upstream="default",
    first_seen=render_time(NOW.timestamp() - 60),
    last_seen=render_time(NOW.timestamp()),
    requests=3,
    window=16_000,
    soft=10_000,
    hard=12_000,
    plan="pivot",
    received_tokens=20_000,
    sent_tokens=8_000,
    prompt_tokens=8_000,
    output_tokens=100,
    compactions=1,
    prunings=0,
    cache_breaks=1,
    total_received_tokens=40_000,
    total_sent_tokens=28_000,
    saved_tokens=12_000,
    saved_usd=0.25,
    spent_usd=1.5,
    summary_tokens=5_000,
    summary_usd=None,
    pivot=None,
)


def make_plain_row(**changes: Any) -> Row:
    return msgspec.structs.replace(_PLAIN, **changes)
