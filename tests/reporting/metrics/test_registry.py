from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from gateway.core.compaction.request import CompactionReason, CompactionRequest
from gateway.core.sizing.usage import Usage
from gateway.downstream.request_note import RequestNote
from gateway.reporting.metrics import Gauge, Metrics
from tests.builders.chat import make_plan

_PLAN = replace(make_plan(), received=1_000, sent=400)


def read_samples(metrics: Metrics) -> dict[str, float]:
    """What has been counted. Without times of creation, and without what is 0 or constant."""
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    samples = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    left_out = ("_created", "gateway_build_info")
    return {
        name: value
        for name, value in samples.items()
        if value and not name.partition("{")[0].endswith(left_out)
    }


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


def test_searches_are_counted_by_who_searches_and_what_came_of_it() -> None:
    metrics = Metrics()
    metrics.count_search("mcp", "found")
    metrics.count_search("mcp", "found")
    metrics.count_search("tool", "nothing")
    assert read_samples(metrics) == {
        'gateway_recall_searches_total{result="found",way="mcp"}': 2.0,
        'gateway_recall_searches_total{result="nothing",way="tool"}': 1.0,
    }


def test_an_answered_request_counts_tokens_usage_and_the_error_of_the_estimate() -> None:
    metrics = Metrics()
    metrics.note_request("acme", _PLAN, Usage(500, 20, 300, 100))
    metrics.count_cache_break("compaction")
    samples = read_samples(metrics)
    ratios = {name: value for name, value in samples.items() if name.startswith("gateway_estimate_ratio")}
    assert ratios.pop("gateway_estimate_ratio_sum") == 0.8
    assert 'gateway_estimate_ratio_bucket{le="0.7"}' not in ratios
    assert ratios['gateway_estimate_ratio_bucket{le="0.8"}'] == ratios["gateway_estimate_ratio_count"] == 1
    assert {name: value for name, value in samples.items() if "ratio" not in name} == {
        'gateway_tokens_total{kind="received",tenant="acme"}': 1_000.0,
        'gateway_tokens_total{kind="sent",tenant="acme"}': 400.0,
        'gateway_tokens_total{kind="saved",tenant="acme"}': 600.0,
        'gateway_usage_tokens_total{kind="prompt",tenant="acme"}': 500.0,
        'gateway_usage_tokens_total{kind="output",tenant="acme"}': 20.0,
        'gateway_usage_tokens_total{kind="cached",tenant="acme"}': 300.0,
        'gateway_usage_tokens_total{kind="written",tenant="acme"}': 100.0,
        'gateway_cache_breaks_total{change="compaction"}': 1.0,
    }


def test_usage_that_was_not_reported_is_not_invented() -> None:
    metrics = Metrics()
    metrics.note_request("", _PLAN, None)
    samples = read_samples(metrics)
    assert samples["gateway_responses_without_usage_total"] == 1
    assert not [name for name in samples if "usage_tokens" in name or "usd" in name or "ratio" in name]


def make_note(begun_seconds: float) -> RequestNote:
    note = RequestNote()
    note.begun_seconds, note.read_seconds = begun_seconds, begun_seconds + 1
    return note


def test_own_time_is_that_of_nobody_else() -> None:
    metrics, note = Metrics(), make_note(100.0)
    note.plan, note.format = "pivot", "chat"
    note.add_exchange("openai", 110.0, 112.0, 120.0)
    note.add_exchange("openai", 121.0, 121.5, 131.0)
    note.waited_seconds, note.client_seconds = 8.0, 2.0
    metrics.note_end(note, 200, 133.25)
    samples = read_samples(metrics)
    assert samples['gateway_requests_total{format="chat",plan="pivot",status="2xx"}'] == 1
    assert samples["gateway_overhead_seconds_sum"] == 133.25 - 101 - 10 - 10 - 8 - 2
    assert samples['gateway_upstream_seconds_sum{upstream="openai"}'] == 20
    assert samples['gateway_upstream_first_byte_seconds_sum{upstream="openai"}'] == 0.5
    assert samples["gateway_compaction_wait_seconds_sum"] == 8


def test_a_request_that_no_upstream_was_asked_for_is_local() -> None:
    metrics = Metrics()
    for status in (401, 503, 0):
        metrics.note_end(make_note(0.0), status, 2.0)
    samples = {name: value for name, value in read_samples(metrics).items() if "requests_total" in name}
    assert samples == {
        f'gateway_requests_total{{format="other",plan="local",status="{kind}"}}': 1.0
        for kind in ("4xx", "5xx", "none")
    }


def test_what_asked_for_compactions_and_what_they_cost_is_counted() -> None:
    metrics = Metrics()
    metrics.count_trigger(
        CompactionRequest(reason=CompactionReason.HARD_THRESHOLD, is_awaited=True, calls=1), None
    )
    metrics.count_trigger(
        CompactionRequest(reason=CompactionReason.MANUAL, is_awaited=True, calls=1, trigger="manual"), "empty"
    )
    metrics.note_compaction_time("summary", 3.0)
    metrics.note_summary_call("done", Usage(900, 40), 2.0)
    metrics.note_summary_call("failed", None, 1.0)
    metrics.note_summary_call("done", Usage(700, 30, 600), 1.0, "riding")
    metrics.count_recovered()
    samples = {name: value for name, value in read_samples(metrics).items() if "_bucket" not in name}
    assert samples == {
        'gateway_compactions_by_trigger_total{reason="hard_threshold",result="done",trigger="auto"}': 1.0,
        'gateway_compactions_by_trigger_total{reason="manual",result="empty",trigger="manual"}': 1.0,
        'gateway_compaction_seconds_sum{kind="summary"}': 3.0,
        'gateway_compaction_seconds_count{kind="summary"}': 1.0,
        'gateway_summary_calls_total{result="done",way="quoted"}': 1.0,
        'gateway_summary_calls_total{result="failed",way="quoted"}': 1.0,
        'gateway_summary_calls_total{result="done",way="riding"}': 1.0,
        "gateway_summary_call_seconds_sum": 4.0,
        "gateway_summary_call_seconds_count": 3.0,
        'gateway_summary_tokens_total{kind="prompt",way="quoted"}': 900.0,
        'gateway_summary_tokens_total{kind="output",way="quoted"}': 40.0,
        'gateway_summary_tokens_total{kind="prompt",way="riding"}': 700.0,
        'gateway_summary_tokens_total{kind="output",way="riding"}': 30.0,
        'gateway_summary_tokens_total{kind="cached",way="riding"}': 600.0,
        "gateway_overflow_recovered_total": 1.0,
    }


def test_the_process_is_watched() -> None:
    metrics = Metrics()
    metrics.note_store("read", 0.01, False)
    metrics.note_store("write", 0.02, True)
    metrics.note_loop_delay(0.003)
    metrics.count_reload(has_failed=False)
    metrics.count_reload(has_failed=True)
    metrics.watch(Gauge("gateway_toys", "Toys.", "color"), lambda: {"red": 2, "blue": 0})
    samples = {name: value for name, value in read_samples(metrics).items() if "_bucket" not in name}
    assert samples == {
        'gateway_store_seconds_sum{operation="read"}': 0.01,
        'gateway_store_seconds_count{operation="read"}': 1.0,
        'gateway_store_seconds_sum{operation="write"}': 0.02,
        'gateway_store_seconds_count{operation="write"}': 1.0,
        'gateway_store_errors_total{operation="write"}': 1.0,
        "gateway_event_loop_delay_seconds_sum": 0.003,
        "gateway_event_loop_delay_seconds_count": 1.0,
        'gateway_settings_reloads_total{result="done"}': 1.0,
        'gateway_settings_reloads_total{result="failed"}': 1.0,
        'gateway_toys{color="red"}': 2.0,
    }


def test_an_upstream_that_invents_statuses_makes_no_label_for_each() -> None:
    metrics = Metrics()
    for status in range(200):
        metrics.count_compaction("summary", f"status {status}")
        metrics.count_trigger(
            CompactionRequest(reason=CompactionReason.SOFT_THRESHOLD, calls=1), f"status {status}"
        )
    samples = read_samples(metrics)
    assert len(samples) < 140
    assert samples['gateway_compactions_total{kind="summary",result="other"}'] == 200 - 64


def test_two_gateways_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.count_pruning()
    assert read_samples(one)["gateway_prunings_total"] == 1.0
    assert "gateway_prunings_total" not in read_samples(other)


def test_the_text_is_in_the_format_of_prometheus() -> None:
    metrics = Metrics()
    metrics.note_end(make_note(0.0), 200, 1.0)
    families = {
        family.name: family.type for family in text_string_to_metric_families(metrics.render().decode())
    }
    assert families["gateway_overhead_seconds"] == "histogram"
    assert families["gateway_open_requests"] == families["gateway_build_info"] == "gauge"
    assert {families[name] for name in families if name.endswith("usd")} == {"counter"}
