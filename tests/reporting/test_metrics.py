from gateway.reporting.metrics import Metrics


def read_samples(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    samples = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    return {name: value for name, value in samples.items() if not name.partition("{")[0].endswith("_created")}


def test_everything_is_counted_under_its_name_and_labels() -> None:
    metrics = Metrics()
    metrics.count_compaction("summary", None)
    metrics.count_compaction("summary", None)
    metrics.count_compaction("digest", "store")
    metrics.count_refusal("tokens", is_retried=True)
    metrics.count_refusal("bytes", is_retried=False)
    metrics.count_pruning()
    metrics.count_truncation()
    assert read_samples(metrics) == {
        'gateway_compactions_total{kind="summary",result="done"}': 2.0,
        'gateway_compactions_total{kind="digest",result="store"}': 1.0,
        'gateway_overflow_refusals_total{kind="tokens",retried="true"}': 1.0,
        'gateway_overflow_refusals_total{kind="bytes",retried="false"}': 1.0,
        "gateway_silent_truncations_total": 1.0,
        "gateway_prunings_total": 1.0,
    }


def test_an_upstream_that_invents_statuses_makes_no_label_for_each() -> None:
    metrics = Metrics()
    for status in range(200):
        metrics.count_compaction("summary", f"status {status}")
    samples = read_samples(metrics)
    assert len(samples) < 80
    assert samples['gateway_compactions_total{kind="summary",result="other"}'] == 200 - 64


def test_two_gateways_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.count_pruning()
    assert read_samples(one)["gateway_prunings_total"] == 1.0
    assert read_samples(other)["gateway_prunings_total"] == 0.0
