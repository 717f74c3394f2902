"""Metrics of several processes are summed as if one process had counted all of it."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, Summary
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gateway.admin.merged.metrics_sum import Families, keep_counted, make_metrics, parse_metrics, sum_metrics

# Label, and what is counted or observed under it.
Counts = Sequence[tuple[str, int]]
_LABELS = st.sampled_from(["a", 'with "quotes"', "back\\slash", "new\nline", "{}=,", ""])
_COUNTS = st.lists(st.tuples(_LABELS, st.integers(0, 10)), max_size=6)


class _Fixed(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return make_metrics(self._families)


def render(families: Families) -> str:
    registry = CollectorRegistry()
    registry.register(_Fixed(families))
    return generate_latest(registry).decode()


def count(counts: Counts) -> str:
    """The metrics of a process that has counted this."""
    registry = CollectorRegistry()
    counter = Counter("calls", "Calls\\ of\nall kinds.", ["kind"], registry=registry)
    gauge = Gauge("busy", "Busy.", ["kind"], registry=registry)
    histogram = Histogram("seconds", "Time.", buckets=(1, 4), registry=registry)
    summary = Summary("size", "Size.", registry=registry)
    for label, amount in counts:
        counter.labels(label).inc(amount)
        gauge.labels(label).inc(amount)
        histogram.observe(amount)
        summary.observe(amount)
    return generate_latest(registry).decode()


def without_creation(text: str) -> str:
    """Also without the order in which labels were seen first."""
    return "\n".join(sorted(line for line in text.splitlines() if "_created" not in line))


@given(st.lists(_COUNTS, min_size=1, max_size=4))
def test_the_sum_of_processes_is_what_one_process_would_have_counted(parts: list[Counts]) -> None:
    summed = sum_metrics([parse_metrics(count(part)) for part in parts])
    assert without_creation(render(summed)) == without_creation(
        count([each for part in parts for each in part])
    )


@given(_COUNTS)
def test_the_metrics_of_one_process_come_out_byte_for_byte(counts: Counts) -> None:
    text = count(counts)
    assert render(sum_metrics([parse_metrics(text)])) == text


@given(_COUNTS)
def test_of_an_ended_worker_all_but_the_gauges_stay(counts: Counts) -> None:
    families = parse_metrics(count(counts))
    kept = keep_counted(families)
    assert families.keys() - kept.keys() == {"busy"}
    assert all(kept[name] == families[name] for name in kept)


def test_the_earliest_time_of_creation_counts() -> None:
    texts = [f"# TYPE x_created gauge\nx_created {seconds}\n" for seconds in (20, 10, 30)]
    summed = sum_metrics(map(parse_metrics, texts))
    assert summed["x_created"].values == {("x_created", ()): 10}
    assert keep_counted(summed) == summed


def test_quantiles_are_left_out() -> None:
    text = '# TYPE s summary\ns{quantile="0.5"} 3\ns_count 2\ns_sum 6\n'
    families = sum_metrics([parse_metrics(text), parse_metrics(text)])
    assert families["s"].values == {("s_count", ()): 4, ("s_sum", ()): 12}


@pytest.mark.parametrize("text", ['x{a="b} 1', "x y", "# TYPE x nonsense\nx 1\n"])
def test_a_text_in_another_format_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_metrics(text)
