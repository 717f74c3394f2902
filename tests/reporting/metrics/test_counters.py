from prometheus_client import CollectorRegistry

from gateway.reporting.metrics.counters import RareCounters


def test_known_results_stay_when_there_are_too_many() -> None:
    counters = RareCounters(CollectorRegistry())
    first = [counters.limit_result(str(number)) for number in range(64)]
    assert first == [str(number) for number in range(64)]
    assert [counters.limit_result(result) for result in ("64", "0")] == ["other", "0"]
