"""What one process has added to a conversation, and the conversation with what several have added.

Each process adds what is new to the record that the store has, so no sum is counted twice or lost. Values in,
values out.
"""

import msgspec
from msgspec import structs

from gateway.activity.record import KEPT_SUMMARIES, ConversationActivity, SummaryNote, Totals
from gateway.activity.series import PointSeries, RequestPoint
from gateway.activity.unshortened import Unshortened


class Increment(msgspec.Struct, frozen=True):
    totals: Totals
    # As many as there are requests in the totals, unless a part of them was thinned by now.
    points: list[RequestPoint]
    summaries: list[SummaryNote]


def find_increment(activity: ConversationActivity, since: Totals) -> Increment:
    """What has come since it had these totals."""
    totals = activity.totals.minus(since)
    return Increment(
        totals=totals,
        points=activity.series.list_points(newest=totals.requests),
        summaries=activity.summaries[len(activity.summaries) - totals.compactions :]
        if totals.compactions <= len(activity.summaries)
        else activity.summaries,
    )


def merge(stored: ConversationActivity, own: ConversationActivity, added: Increment) -> ConversationActivity:
    """The record in the store, with what was added here. What is said of the newest request is that of the
    one that saw it last.
    """
    newest = stored if stored.seen_seconds > own.seen_seconds else own
    totals = structs.replace(stored.totals)
    totals.add(added.totals)
    points = [*stored.series.list_points(), *added.points]
    points.sort(key=lambda point: point.at_seconds)
    used = {note.key for note in own.summaries if not note.is_unused}
    summaries = sorted([*stored.summaries, *added.summaries], key=lambda note: note.at_seconds)
    summaries = [
        structs.replace(each, is_unused=each.is_unused and each.key not in used) for each in summaries
    ]
    first_seconds = min(stored.first_seconds, own.first_seconds)
    return structs.replace(
        newest,
        first_seconds=first_seconds,
        totals=totals,
        series=PointSeries(first_seconds, points, stored.series.spans),
        summaries=summaries[-KEPT_SUMMARIES:],
        unshortened=_join_unshortened(newest, stored, own, totals.requests),
    )


def _join_unshortened(
    newest: ConversationActivity, stored: ConversationActivity, own: ConversationActivity, requests: int
) -> Unshortened:
    """A conversation that would have ended for one process has ended for all. requests: of both together."""
    died_at = stored.unshortened.died_at
    if not died_at and own.unshortened.died_at:
        # What the others have seen came before.
        died_at = requests - (own.totals.requests - own.unshortened.died_at)
    return structs.replace(newest.unshortened, died_at=died_at)
