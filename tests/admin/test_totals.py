"""The sums of tenants and models."""

from gateway.activity.economics import CacheBreaks, Economics
from gateway.admin.totals import MOST_MODELS, make_totals
from tests.builders.rows import row as make


def test_sums_are_of_each_tenant_in_the_order_of_the_names() -> None:
    rows = [
        make("a", 0, tenant="red", requests=2, saved_tokens=100, saved_usd=0.5, spent_usd=1.0, compactions=1),
        make("b", 0, tenant="red", requests=3, saved_tokens=50, spent_usd=2.0, cache_breaks=1, prunings=2),
        make("c", 0, tenant="blue", summary_tokens=7),
    ]
    blue, red = make_totals(rows).tenants
    assert (blue.tenant, blue.conversations, blue.summary_tokens, blue.spent_usd) == ("blue", 1, 7, None)
    assert (red.tenant, red.conversations, red.requests, red.saved_tokens) == ("red", 2, 5, 150)
    assert (red.saved_usd, red.spent_usd, red.compactions, red.prunings) == (0.5, 3.0, 1, 2)


def test_sums_of_money_are_rounded_as_their_parts_are() -> None:
    money = Economics(with_usd=0.1, without_usd=0.2, riding_usd=0.1)
    rows = [make(name, 0, saved_usd=0.1, spent_usd=0.7, economics=money) for name in "abc"]
    (found,) = make_totals(rows).tenants
    assert (found.saved_usd, found.spent_usd) == (0.3, 2.1)
    shown = found.economics
    assert (shown.with_usd, shown.without_usd, shown.riding_usd) == (0.3, 0.6, 0.3)


def test_models_are_summed_over_tenants_and_the_busiest_comes_first() -> None:
    one = Economics(cached_tokens=5, with_usd=1.0, died=1, breaks=CacheBreaks(pruning=2))
    rows = [
        make("a", 0, tenant="red", model="small", requests=1),
        make("b", 0, tenant="red", model="large", requests=2, economics=one),
        make("c", 0, tenant="blue", model="large", requests=3, economics=Economics(cached_tokens=6, died=1)),
    ]
    large, small = make_totals(rows).models
    assert (large.model, large.conversations, large.requests, small.model) == ("large", 2, 5, "small")
    found = large.economics
    assert (found.cached_tokens, found.with_usd, found.died, found.breaks.pruning) == (11, 1.0, 2, 2)


def test_models_that_are_not_listed_are_one_sum() -> None:
    rows = [make(f"{at:x}", 0, model=f"m{at:04}", requests=1) for at in range(MOST_MODELS + 7)]
    *listed, others = make_totals(rows).models
    assert [each.model for each in listed] == [f"m{at:04}" for at in range(MOST_MODELS)]
    assert (others.model, others.conversations, others.requests) == (None, 7, 7)


def test_branches_and_side_calls_of_a_session_count_once() -> None:
    died = Economics(died=1)
    rows = [
        make("a", 0, session="one", economics=died),
        make("b", 0, session="one", parent="a", economics=died),
        make("c", 0, session="one", purpose="title"),
        make("d", 0),
        make("e", 0, parent="d", economics=died),
        make("f", 0, parent="e", economics=died),
        make("g", 0, purpose="agent", economics=died),
        make("h", 0, session="one", tenant="other"),
    ]
    found = {each.tenant: each for each in make_totals(rows).tenants}
    assert {name: (each.conversations, each.economics.died) for name, each in found.items()} == {
        rows[0].tenant: (2, 2),
        "other": (1, 0),
    }
