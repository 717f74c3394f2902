"""Policies side by side."""

from collections.abc import Mapping

from gateway.replay.comparison import compare, find_best, make_result
from gateway.replay.money import Pricing
from gateway.replay.playing import PlayedSource
from gateway.replay.runs import Played, RequestRun, SummaryCallRun
from tests.replay.samples import PRICING, make_run

_NO_PRICES = Pricing(lambda _: None)


def _play(runs: Mapping[str, RequestRun]) -> PlayedSource:
    played = tuple(Played(recording="r", policy=name, requests=(run,)) for name, run in runs.items())
    return PlayedSource(number=0, name="r", file_bytes=1, played=played)


def test_each_policy_has_the_sums_of_all_recordings() -> None:
    source = _play({"a": make_run(), "b": make_run(sent=10)})
    results = compare([source, source, PlayedSource(number=1, name="x", file_bytes=1)], ["a", "b"], PRICING)
    assert [(result.policy, result.sums.sent) for result in results] == [("a", 2_000), ("b", 20)]


def test_the_cheapest_is_the_best_unless_it_sends_more_beyond_the_window() -> None:
    dear = make_result("dear", [make_run(sent=900, window=950)], PRICING)
    cheap = make_result("cheap", [make_run(sent=600, window=950)], PRICING)
    too_large = make_result("too large", [make_run(sent=500, window=400)], PRICING)
    assert find_best([dear, too_large, cheap]) == 2


def test_without_prices_tokens_from_a_cache_count_for_little() -> None:
    cached = make_result("cached", [make_run(sent=1_000, sent_cached=900)], _NO_PRICES)
    short = make_result("short", [make_run(sent=400)], _NO_PRICES)
    paid = make_result("paid", [make_run(sent=10, calls=(SummaryCallRun("m", 100, 40),))], _NO_PRICES)
    assert find_best([short, cached, paid]) == 1


def test_one_policy_alone_is_not_the_best_of_any() -> None:
    assert find_best([make_result("a", [], PRICING)]) is None
