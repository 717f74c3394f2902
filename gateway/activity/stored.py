"""The record of one conversation as it is stored, and back."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway.activity.record import ConversationActivity, PivotNote, SummaryNote, Totals
from gateway.activity.series import PointSeries, RequestSpan
from gateway.activity.unshortened import Unshortened
from gateway.core.compaction.plan import PlanName
from gateway.core.history.purpose import Purpose

KIND: Final = "activity"


class StoredActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of ConversationActivity, and the points of its series packed."""

    owner: str
    id: str
    parent: str | None
    tenant: str
    session: str | None
    purpose: Purpose
    model: str
    upstream: str
    first_seconds: float
    seen_seconds: float
    window: int
    soft: int
    hard: int
    plan: PlanName
    pivot: PivotNote | None
    batches: tuple[str, ...]
    messages: int
    scope: str
    totals: Totals
    start_seconds: float
    points: bytes
    spans: Sequence[RequestSpan]
    summaries: list[SummaryNote]
    unshortened: Unshortened = Unshortened()


_SHARED_FIELDS: Final = [
    name for name in ConversationActivity.__struct_fields__ if name in StoredActivity.__struct_fields__
]


def store_activity(activity: ConversationActivity) -> StoredActivity:
    """It shares the totals and the notes: encode it before the activity changes."""
    series = activity.series
    shared = {name: getattr(activity, name) for name in _SHARED_FIELDS}
    return StoredActivity(
        **shared, start_seconds=series.start_seconds, points=series.pack(), spans=series.spans
    )


def restore_activity(stored: StoredActivity) -> ConversationActivity | None:
    """None if its series is damaged."""
    try:
        series = PointSeries.unpack(stored.start_seconds, stored.points, stored.spans)
    except ValueError:
        return None
    shared = {name: getattr(stored, name) for name in _SHARED_FIELDS}
    return ConversationActivity(**shared, series=series)
