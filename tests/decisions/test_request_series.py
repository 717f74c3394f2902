"""The requests of a conversation: the newest ones, and as they would have been without us."""

from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.activity.series import KEPT_POINTS, PointSeries, PrefixChange, RequestPoint
from gateway.activity.unshortened import Prior, Unshortened, follow
from gateway.core.compaction.plan import PlanName
from gateway.core.sizing.usage import Usage

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
    assert PointSeries.unpack(1_000.0, series.pack()).list_points() == noted


@given(st.lists(points(), min_size=1, max_size=30), st.integers(1, 6_000))
def test_the_newest_points_are_kept(drawn: list[RequestPoint], count: int) -> None:
    noted = make_points(count, drawn)
    kept = PointSeries(1_000.0, noted).list_points()
    assert kept == noted[len(noted) - len(kept) :]
    assert min(count, KEPT_POINTS) <= len(kept) < KEPT_POINTS + 50


def test_a_number_that_no_model_has_is_cut_and_the_next_points_are_whole() -> None:
    series = PointSeries(0.0)
    huge = RequestPoint(at_seconds=1e30, messages=1, received=1, sent=1, prompt_tokens=10**30)
    plain = RequestPoint(at_seconds=2.0, messages=2, received=20, sent=10)
    series.append(huge)
    series.append(plain)
    first, second = series.list_points()
    assert (first.prompt_tokens, first.sent) == (2**31 - 1, 1)
    assert second == plain


def point(
    received: int, sent: int, change: PrefixChange | None = None, at_seconds: float = 2.0
) -> RequestPoint:
    return RequestPoint(at_seconds=at_seconds, messages=3, received=received, sent=sent, change=change)


_GROWN = Unshortened(at_seconds=1.0, hit_share=1.0)
_PRIOR = Prior(prompt=45_000, growth=5_000)


def test_what_is_sent_as_it_came_would_have_cost_the_same() -> None:
    usage = Usage(50_000, 700, 40_000, 9_000)
    _, found = follow(Unshortened(), point(900, 900), usage, Prior(window=128_000), 1)
    assert found == usage


def test_what_was_left_out_would_have_come_out_of_the_cache() -> None:
    # 5,000 tokens are new with and without the gateway.
    after, found = follow(_GROWN, point(149_000, 49_000), Usage(50_000, 700, 45_000, 4_000), _PRIOR, 9)
    assert found == Usage(150_000, 700, 145_000, 4_000)
    assert (after.at_seconds, after.hit_share) == (2.0, 1.0)


def test_where_nothing_is_cached_all_would_have_been_new() -> None:
    _, found = follow(_GROWN, point(149_000, 49_000), Usage(50_000, 700), _PRIOR, 9)
    assert found == Usage(150_000, 700, 0, 0)


@pytest.mark.parametrize("change", ["compaction", "pruning", "edit"])
def test_the_cache_that_the_gateway_broke_would_have_been_read(change: PrefixChange) -> None:
    after, found = follow(
        _GROWN, point(152_000, 22_000, change), Usage(20_000, 700, 5_000, 15_000), _PRIOR, 9
    )
    assert found == Usage(150_000, 700, 145_000, 5_000)
    assert after.hit_share == 1.0


def test_an_hour_later_the_cache_would_have_been_cold_too() -> None:
    late = point(152_000, 22_000, "compaction", at_seconds=3_601.0)
    _, found = follow(_GROWN, late, Usage(20_000, 700, 0, 20_000), _PRIOR, 9)
    assert found == Usage(150_000, 700, 0, 150_000)


def test_a_prefix_that_the_client_broke_would_have_been_broken_too() -> None:
    after, found = follow(_GROWN, point(149_000, 49_000, "history"), Usage(50_000, 700, 4_500), _PRIOR, 9)
    assert found == Usage(150_000, 700, 14_500, 0)
    assert after.hit_share == 1.0


def test_a_conversation_ends_with_the_request_that_does_not_fit_its_window() -> None:
    unshortened, sizes = Unshortened(), []
    for number in range(1, 6):
        sent = point(40_000 * number, 40_000)
        unshortened, found = follow(unshortened, sent, Usage(40_000, 10), Prior(128_000), number)
        sizes.append(found.prompt_tokens if found is not None else None)
    assert sizes == [40_000, 80_000, 120_000, None, None]
    assert unshortened.died_at == 4


def test_without_a_known_window_every_request_fits() -> None:
    after, found = follow(Unshortened(), point(10**7, 0), Usage(100, 10), Prior(), 1)
    assert found is not None and found.prompt_tokens == 10**7 + 100 and not after.died_at


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_it_does_not_matter_how_many_processes_share_the_requests(processes: int) -> None:
    """Each of them knows the head of the request before, whichever served it."""
    states, found = [Unshortened()] * processes, list[Usage | None]()
    for number in range(1, 41):
        place, sent, before = number % processes, 1_000 * number + 9_000, 1_000 * number + 8_000
        usage = Usage(sent, 10, before if number > 1 else 0, 1_000 if number > 1 else sent)
        left_out = 50_000 if number > 20 else 0
        request = point(sent + left_out, sent, at_seconds=number)
        prior = Prior(200_000, before if number > 1 else 0, 1_000)
        states[place], one = follow(states[place], request, usage, prior, number)
        found.append(one)
    assert found[0] == Usage(10_000, 10, 0, 10_000) and found[19] == Usage(29_000, 10, 28_000, 1_000)
    assert found[39] == Usage(99_000, 10, 98_000, 1_000)


_COUNTS = st.integers(0, 10**6)
_USAGES = st.builds(Usage, st.integers(1, 10**6), _COUNTS, st.none() | _COUNTS, st.none() | _COUNTS)
_CHANGES = st.sampled_from([None, "compaction", "pruning", "edit", "history"])


_KNOWN = st.tuples(_COUNTS, _COUNTS)


@given(st.lists(st.tuples(_COUNTS, _COUNTS, _CHANGES, st.integers(0, 7_200), _USAGES, _KNOWN), max_size=12))
def test_what_would_have_been_reported_is_possible(
    requests: list[tuple[int, int, PrefixChange | None, int, Usage, tuple[int, int]]],
) -> None:
    unshortened = Unshortened()
    for number, (received, sent, change, at_seconds, usage, known) in enumerate(requests, 1):
        request = point(received, sent, change, at_seconds)
        unshortened, found = follow(unshortened, request, usage, Prior(10**6, *known), number)
        assert (found is None) == bool(unshortened.died_at)
        if found is not None and received <= sent:
            assert found == usage
        elif found is not None:
            assert 0 <= found.prompt_tokens <= 10**6 and found.output_tokens == usage.output_tokens
            assert found.cached_tokens is not None and found.cache_write_tokens is not None
            assert min(found.cached_tokens, found.cache_write_tokens) >= 0
            assert found.cached_tokens + found.cache_write_tokens <= found.prompt_tokens
