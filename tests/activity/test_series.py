"""Points and spans: nothing is lost when points are thinned, and bytes give the same points again."""

from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.activity.series import KEPT_POINTS, PointSeries, PrefixChange, RequestPoint, RequestSpan
from gateway.core.compaction.plan import PlanName

_TOKENS = st.integers(0, 10**7)


def points(start: float = 1_000.0) -> st.SearchStrategy[RequestPoint]:
    usage = st.none() | _TOKENS
    return st.builds(
        RequestPoint,
        at_seconds=st.integers(0, 10**7).map(lambda ticks: start + ticks / 100),
        messages=st.integers(0, 10**5),
        received=_TOKENS,
        sent=_TOKENS,
        prompt_tokens=usage,
        cached_tokens=usage,
        output_tokens=usage,
        plan=st.sampled_from(get_args(PlanName)),
        soft=_TOKENS,
        hard=_TOKENS,
        change=st.sampled_from([None, *get_args(PrefixChange)]),
    )


def make_points(count: int, drawn: Sequence[RequestPoint]) -> list[RequestPoint]:
    """As many as are wanted, of the drawn ones in turn."""
    return [drawn[number % len(drawn)] for number in range(count)]


@given(st.lists(points(), max_size=30))
def test_points_come_back_as_they_were_noted(noted: list[RequestPoint]) -> None:
    series = PointSeries(1_000.0, noted)
    assert series.list_points() == noted
    assert series.list_points(newest=3) == noted[-3:]
    assert series.find_newest() == (noted[-1] if noted else None)
    assert PointSeries.unpack(1_000.0, series.pack(), series.spans).list_points() == noted


@given(st.lists(points(), min_size=1, max_size=30), st.integers(1, 6_000))
def test_thinning_keeps_sums_and_extremes(drawn: list[RequestPoint], count: int) -> None:
    noted = make_points(count, drawn)
    series = PointSeries(1_000.0, noted)
    kept, spans = series.list_points(), series.spans
    assert kept == noted[len(noted) - len(kept) :] and len(kept) >= min(count, KEPT_POINTS)
    assert series.thinned + len(kept) == count
    thinned = noted[: count - len(kept)]
    for name in ("received", "sent", "prompt_tokens", "cached_tokens", "output_tokens"):
        expected = sum(getattr(point, name) or 0 for point in thinned)
        assert sum(getattr(span, name) for span in spans) == expected
    assert sum(span.changes for span in spans) == sum(point.change is not None for point in thinned)
    if thinned:
        assert min(span.least_sent for span in spans) == min(point.sent for point in thinned)
        assert max(span.most_sent for span in spans) == max(point.sent for point in thinned)
        assert min(span.least_received for span in spans) == min(point.received for point in thinned)
        assert max(span.most_received for span in spans) == max(point.received for point in thinned)


def test_a_conversation_without_an_end_takes_bounded_memory() -> None:
    series = PointSeries(0.0)
    sizes = []
    for number in range(100_000):
        series.append(RequestPoint(at_seconds=number, messages=number, received=number, sent=number))
        sizes.append(series.weight_bytes)
    assert max(sizes) < 100_000 and len(series.spans) <= 64
    assert series.thinned + len(series) == 100_000


def test_a_number_that_no_model_has_is_cut_and_the_next_points_are_whole() -> None:
    series = PointSeries(0.0)
    huge = RequestPoint(at_seconds=1e30, messages=1, received=1, sent=1, prompt_tokens=10**30)
    plain = RequestPoint(at_seconds=2.0, messages=2, received=20, sent=10)
    series.append(huge)
    series.append(plain)
    first, second = series.list_points()
    assert (first.prompt_tokens, first.sent) == (2**31 - 1, 1)
    assert second == plain


@pytest.mark.parametrize("data", [b"1234", b"\xff" * 40, b"\x00" * 36 + b"\x0f\0\0\0", b"12345"])
def test_bytes_that_are_no_points_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        PointSeries.unpack(0.0, data, ())


def test_the_times_of_spans_cover_their_requests() -> None:
    noted = [RequestPoint(at_seconds=float(at), messages=1, received=1, sent=1) for at in range(700)]
    spans: list[RequestSpan] = PointSeries(0.0, noted).spans
    assert spans[0].first_seconds == 0.0
    assert [span.first_seconds for span in spans[1:]] == [span.last_seconds + 1 for span in spans[:-1]]
