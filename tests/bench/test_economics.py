"""The bench of costs: its sums on courses small enough to count by hand, and a small conversation played."""

import itertools
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from bench.economics.charts import Bar, render_bills, render_prompts
from bench.economics.plays import DEFAULT, TODAY, Play, play_all
from bench.economics.schedules import Course, find_optimum, make_course, price_schedule, truncate
from bench.economics.tables import BEST, measure, print_ratios, print_targets
from bench.economics.tariffs import TARIFFS, Bill, Tariff, make_bill
from bench.economics.visible import mean_of, measure_visible
from bench.economics.workloads import MODEL, Workload, list_small_workloads
from gateway.core.history.transcript import TranscriptEntry
from gateway.replay.runs import SummaryCallRun
from tests.replay.samples import make_messages, make_run

_MILLION = 1_000_000
_OPENAI, _ANTHROPIC, _UNCACHED = TARIFFS


def make_even_course(requests: int, growth: int = 2_000, hard: int = 20_000) -> Course:
    sizes = [2_000 + growth * at for at in range(requests)]
    return Course(received=sizes, replies=[100] * requests, environment=1_500, floor=2_000, hard=hard)


def test_a_bill_names_each_part() -> None:
    runs = [
        make_run(received=_MILLION, sent=_MILLION, cache_read=0, output=_MILLION),
        make_run(
            received=2 * _MILLION,
            sent=2 * _MILLION,
            cache_read=_MILLION // 2,
            calls=(SummaryCallRun(MODEL, _MILLION, _MILLION, cached_tokens=_MILLION),),
        ),
    ]
    bill = make_bill(_OPENAI, runs)
    assert bill.cached == pytest.approx(0.125 / 2)
    assert (bill.new, bill.again) == pytest.approx((2 * 1.25, 1.25 / 2))
    assert bill.replies == pytest.approx(10)
    assert (bill.summary_input, bill.summary_output) == pytest.approx((0.125, 10))
    assert bill.total == pytest.approx(sum(bill.parts))


def test_a_bill_without_a_cache_has_no_cached_part() -> None:
    bill = make_bill(_UNCACHED, [make_run(received=_MILLION, sent=_MILLION, sent_cached=_MILLION)])
    assert bill.parts == pytest.approx((0, 1.25, 0, 0, 0, 0))


def test_what_is_written_to_a_marked_cache_costs_more() -> None:
    run = make_run(received=_MILLION, sent=_MILLION, cache_read=0, cache_written=_MILLION // 2)
    assert make_bill(_ANTHROPIC, [run]).total == pytest.approx((3 + 3.75) / 2)


@pytest.mark.parametrize("tariff", TARIFFS, ids=lambda tariff: tariff.name)
def test_no_schedule_is_cheaper_than_the_optimum(tariff: Tariff) -> None:
    course = make_even_course(14)
    best = find_optimum(course, tariff).bill.total
    places = range(2, 14)
    for summaries in itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(1, 5)):
        bill = price_schedule(course, tariff, summaries)
        if bill is not None:
            assert best <= bill.total + 1e-12


def test_a_short_course_needs_no_summary_and_costs_what_it_is() -> None:
    found = find_optimum(make_even_course(2), _UNCACHED)
    assert found.summaries == ()
    assert found.bill.total == pytest.approx((6_000 * 1.25 + 200 * 10) / _MILLION)


def test_dropping_the_oldest_breaks_the_prefix_each_time_and_half_seldom() -> None:
    course = make_even_course(60, growth=1_000)
    each, half = truncate(course, _OPENAI).bill, truncate(course, _OPENAI, 0.5).bill
    assert each.again > 3 * half.again
    assert each.summary_input == half.summary_output == 0


def test_only_marked_requests_have_marks_and_all_say_the_same() -> None:
    workload = Workload(
        name="w", window=16_000, messages=[{"role": "system", "content": "Work."}, *make_messages(3)]
    )
    plain = list(workload.list_requests(is_marked=False))
    marked = list(workload.list_requests(is_marked=True))
    assert [request.body.count(b"cache_control") for request in plain] == [0, 0, 0, 0]
    assert [request.body.count(b"cache_control") for request in marked] == [2, 2, 2, 2]


def _say_nothing(
    piece: Sequence[TranscriptEntry], earlier: str, cap_chars: int, shown: Sequence[TranscriptEntry] = ()
) -> str:
    return ""


def _repeat_results(
    piece: Sequence[TranscriptEntry], earlier: str, cap_chars: int, shown: Sequence[TranscriptEntry] = ()
) -> str:
    return "\n".join(entry.text for entry in piece)


def test_what_is_pruned_is_not_visible_and_what_a_summary_says_is() -> None:
    messages = [dict(message) for message in make_messages(40)]
    for at in (2, len(messages) - 2):
        messages[at]["content"] = " ".join(f"lib/part{part}.py" for part in range(8))
    workload = Workload(name="w", window=16_000, messages=messages)
    whole = [make_run(received=10_000, hard=16_000, messages=end) for end in range(25, len(messages) - 2, 2)]
    pruned = [replace(run, pruned=(2,)) for run in whole]
    folded = [replace(run, covers=20) for run in whole]
    seen, hidden = (measure_visible(workload, runs, _say_nothing) for runs in (whole, pruned))
    told = measure_visible(workload, folded, _repeat_results)
    assert mean_of(seen, "names") == mean_of(seen, "paths") == 1.0
    assert mean_of(hidden, "names") < 0.5
    assert all(each.folded is None for each in (*seen, *hidden))
    assert all(each.folded is not None for each in told)
    assert mean_of(told, "folded") > 0.8


def test_a_small_conversation_is_played_priced_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    workloads = list_small_workloads()
    policies = {TODAY: "preset: adaptive, economy: 0, summary: {ride: never}", DEFAULT: "preset: adaptive"}
    plays = play_all(workloads, policies, processes=1)
    measured = measure(workloads, plays, [*policies])
    print_ratios(measured)
    print_targets(measured)
    shown = capsys.readouterr().out
    assert TODAY in shown and BEST in shown
    for tariff in TARIFFS:
        assert measured.find_ratios(TODAY, tariff.name) == [1.0]
        assert measured.find_ratios(BEST, tariff.name)[0] < 1.0
        runs = plays[Play(workloads[0].name, tariff.name, TODAY)]
        assert make_course(runs).hard > make_course(runs).floor
        assert all((run.cache_read is None) == (tariff is _UNCACHED) for run in runs)


def test_charts_are_xml_that_says_what_it_shows() -> None:
    bars = [Bar("before", Bill(cached=1, new=1), 1.0), Bar("adaptive & cheap", Bill(new=1), 0.5)]
    bills = ElementTree.fromstring(render_bills({"OpenAI-like": bars}))
    runs = [make_run(sent=size) for size in (1_000, 2_000, 500)]
    prompts = ElementTree.fromstring(render_prompts("Prompts", {"before": runs, "adaptive": runs[:2]}))
    for chart, shown in ((bills, "adaptive & cheap 0.50"), (prompts, "3,500 tokens sent")):
        assert any(shown in (element.text or "") for element in chart.iter())
