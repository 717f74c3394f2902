from gateway import __version__
from gateway.admin.merged.metrics_sum import keep_counted, parse_metrics, sum_metrics
from gateway.reporting.metrics import Metrics
from gateway.reporting.metrics.collector import BUILD_INFO, PlainCollector
from gateway.reporting.metrics.definitions import CounterDefinition


def test_a_counter_without_labels_is_there_from_the_start() -> None:
    collector = PlainCollector()
    collector.add_counter(CounterDefinition("gateway_toys", "Toys."))
    collector.add_counter(CounterDefinition("gateway_balls", "Balls.", ("color",)))
    samples = {sample.name: sample.value for metric in collector.collect() for sample in metric.samples}
    assert samples == {"gateway_toys_total": 0, BUILD_INFO: 1}


def test_the_build_is_named() -> None:
    (info,) = PlainCollector().collect()
    assert info.samples[0].labels["version"] == __version__


def make_counted(delay_seconds: float) -> Metrics:
    metrics = Metrics()
    metrics.note_loop_delay(delay_seconds)
    metrics.open_requests = 2
    return metrics


def test_workers_add_up() -> None:
    """As the admin port of several workers merges what they render."""
    parts = [parse_metrics(make_counted(delay).render().decode()) for delay in (0.004, 3.0)]
    summed = {name: dict(family.values) for name, family in sum_metrics(parts).items()}
    delays = summed["gateway_event_loop_delay_seconds"]
    bucket = "gateway_event_loop_delay_seconds_bucket"
    assert delays[bucket, (("le", "0.005"),)] == delays[bucket, (("le", "2.5"),)] == 1
    assert delays[bucket, (("le", "+Inf"),)] == delays["gateway_event_loop_delay_seconds_count", ()] == 2
    assert summed["gateway_open_requests"]["gateway_open_requests", ()] == 4
    assert list(summed[BUILD_INFO].values()) == [1]


def test_an_ended_worker_leaves_its_histograms_and_no_gauge() -> None:
    kept = keep_counted(parse_metrics(make_counted(0.1).render().decode()))
    assert "gateway_event_loop_delay_seconds" in kept
    assert not {"gateway_open_requests", BUILD_INFO} & kept.keys()
