"""The record of one conversation as bytes, and back."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import structs

from gateway.activity.record import ConversationActivity, PivotNote, SummaryNote, Totals
from gateway.activity.series import PointSeries, RequestSpan
from gateway.activity.unshortened import Unshortened
from gateway.core.compaction.plan import PlanName
from gateway.core.history.purpose import Purpose
from gateway.store.keys import find_tag, make_key, make_tag

# It sorts before all other kinds: scans for those do not pass it.
KIND: Final = "activity"


class StoredTotals(Totals, kw_only=True):
    """With what the version before this one passes over: it reads no record with a field of its own."""

    unshortened: Unshortened = Unshortened()


class StoredActivity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of ConversationActivity, and the points of its series in base64."""

    version: Literal[1] = 1
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
    totals: StoredTotals
    start_seconds: float
    points: bytes
    spans: Sequence[RequestSpan]
    summaries: list[SummaryNote]


_SHARED_FIELDS: Final = [
    name
    for name in ConversationActivity.__struct_fields__
    if name in StoredActivity.__struct_fields__ and name != "totals"
]
_decoder: Final = msgspec.json.Decoder(StoredActivity)


def name_record(owner: str, conversation_id: str) -> str:
    """The key of the store that it is under."""
    return make_key(make_tag(owner), KIND, conversation_id)


def render_activity(activity: ConversationActivity) -> bytes:
    series = activity.series
    shared = {name: getattr(activity, name) for name in _SHARED_FIELDS}
    totals = StoredTotals(**structs.asdict(activity.totals), unshortened=activity.unshortened)
    stored = StoredActivity(
        **shared, totals=totals, start_seconds=series.start_seconds, points=series.pack(), spans=series.spans
    )
    return msgspec.json.encode(stored)


def parse_activity(key: str, data: bytes) -> ConversationActivity | None:
    """None if it is damaged, has another version, or belongs under another key."""
    try:
        stored = _decoder.decode(data)
        series = PointSeries.unpack(stored.start_seconds, stored.points, stored.spans)
    except (ValueError, RecursionError):
        return None
    if find_tag(key) != make_tag(stored.owner) or key != name_record(stored.owner, stored.id):
        return None
    shared = {name: getattr(stored, name) for name in _SHARED_FIELDS}
    totals = Totals(**{name: getattr(stored.totals, name) for name in Totals.__struct_fields__})
    return ConversationActivity(**shared, totals=totals, series=series, unshortened=stored.totals.unshortened)
