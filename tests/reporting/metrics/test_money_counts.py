from gateway.activity.counting import ExtraMoney, NotedRequest, SummaryMoney
from gateway.core.sizing.usage import Usage
from gateway.reporting.metrics import Metrics
from tests.reporting.metrics.test_registry import read_samples


def test_money_is_counted_by_tenant_and_by_the_name_of_the_price() -> None:
    metrics = Metrics()
    noted = NotedRequest(
        None, 600, spent_usd=0.25, saved_usd=0.5, without_usd=1.0, with_usd=0.25, price="gpt-*"
    )
    metrics.money.note_request("acme", noted, Usage(500, 20, 300, 100))
    metrics.money.note_extra_call("acme", ExtraMoney(0.125, "gpt-*", is_compared=True), Usage(10, 1))
    metrics.money.note_summary("acme", SummaryMoney(0.5, 2.0, "small", "gpt-*", is_compared=True))
    assert read_samples(metrics) == {
        'gateway_spent_usd_total{tenant="acme"}': 0.375,
        'gateway_saved_usd_total{tenant="acme"}': 0.5,
        'gateway_compared_usd_total{gateway="without",price="gpt-*",tenant="acme"}': 1.0,
        'gateway_compared_usd_total{gateway="with",price="gpt-*",tenant="acme"}': 2.375,
        'gateway_compared_usd_total{gateway="with",price="small",tenant="acme"}': 0.5,
        'gateway_summary_usd_total{way="quoted"}': 0.5,
        'gateway_summary_usd_total{way="riding"}': 2.0,
        'gateway_priced_tokens_total{kind="prompt",price="gpt-*"}': 510.0,
        'gateway_priced_tokens_total{kind="output",price="gpt-*"}': 21.0,
        'gateway_priced_tokens_total{kind="cached",price="gpt-*"}': 300.0,
        'gateway_priced_tokens_total{kind="written",price="gpt-*"}': 100.0,
        'gateway_priced_usd_total{kind="requests",price="gpt-*"}': 0.375,
        'gateway_priced_usd_total{kind="summaries",price="small"}': 0.5,
        'gateway_priced_usd_total{kind="summaries",price="gpt-*"}': 2.0,
    }


def test_a_conversation_that_would_have_ended_is_counted_once_and_compared_no_more() -> None:
    metrics = Metrics()
    metrics.money.note_request("acme", NotedRequest(None, 0, 0.25, None, has_died=True, price="m"), None)
    metrics.money.note_request("acme", NotedRequest(None, 0, 0.25, None, price="m"), None)
    metrics.money.note_summary("acme", SummaryMoney(0.5, None, "m", "m"))
    samples = read_samples(metrics)
    assert samples['gateway_conversations_died_total{tenant="acme"}'] == 1.0
    assert not any("compared" in name for name in samples)


def test_models_without_a_price_share_a_label_and_unknown_money_is_not_counted() -> None:
    metrics = Metrics()
    metrics.money.note_request("", NotedRequest(None, 0, None, -0.1), Usage(5, 1))
    metrics.money.note_extra_call("", ExtraMoney(), Usage(5, 1))
    metrics.money.note_summary("", SummaryMoney())
    assert read_samples(metrics) == {
        'gateway_priced_tokens_total{kind="prompt",price=""}': 10.0,
        'gateway_priced_tokens_total{kind="output",price=""}': 2.0,
    }
