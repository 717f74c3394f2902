from gateway.reporting.metrics import Metrics, gauges


def test_a_value_is_looked_up_when_it_is_scraped() -> None:
    metrics, waiting = Metrics(), [1.0]
    metrics.watch(gauges.MEMORY_WAITING, lambda: {"": waiting[0]})
    assert "\ngateway_memory_waiting 1.0\n" in metrics.render().decode()
    waiting[0] = 5
    assert "\ngateway_memory_waiting 5.0\n" in metrics.render().decode()
