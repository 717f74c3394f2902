"""The limits of a model: from which source, learned from answers, and when an answer was cut short unseen."""

from dataclasses import astuple, replace

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size
from gateway.core.limits.model_limits import Limits, Sources, choose_limits
from gateway.core.sizing.estimate import Calibration, Expected, Sizes, expect_usage
from tests.decisions.builders import converse, make_batch, make_head, make_pivot

_FIELD = st.one_of(st.none(), st.integers(0, 3))
_LIMITS = st.builds(Limits, context=_FIELD, input=_FIELD, output=_FIELD, body_bytes=_FIELD, images=_FIELD)


def test_defaults_apply_field_by_field_and_zero_is_unset() -> None:
    ours, other = Limits(context=16_000, output=0), Limits(context=8_000, input=4_000, output=2_000)
    assert ours.with_defaults(other) == Limits(context=16_000, input=4_000, output=2_000)


@given(_LIMITS, _LIMITS)
def test_caps_apply_field_by_field(a: Limits, b: Limits) -> None:
    both = a.with_caps(b)
    assert both == b.with_caps(a)
    for ours, other, result in zip(astuple(a), astuple(b), astuple(both), strict=True):
        assert result == min((each for each in (ours, other) if each), default=None)


def test_sources_take_precedence_in_order() -> None:
    table = Limits(context=1_000, input=2_000, output=3_000)
    proven = Limits(context=5_000, input=6_000)
    listed = Limits(context=4_000)
    assert choose_limits(Sources(table=table)) == table
    known = choose_limits(Sources(table=table, proven=proven))
    assert known == Limits(context=5_000, input=6_000, output=3_000)
    known = choose_limits(Sources(table=table, proven=proven, listed=listed))
    assert known == Limits(context=4_000, input=6_000, output=3_000)
    known = choose_limits(
        Sources(table=table, proven=proven, listed=listed, configured=Limits(context=9_000))
    )
    assert known == Limits(context=9_000, input=6_000, output=3_000)


def test_a_proven_limit_counts_only_below_the_listed_one() -> None:
    listed = Limits(context=128_000)
    assert choose_limits(Sources(listed=listed, proven=Limits(context=65_536))).context == 65_536
    assert choose_limits(Sources(listed=listed, proven=Limits(context=200_000))).context == 128_000


def test_a_suspected_limit_lowers_and_never_raises() -> None:
    suspected = Limits(context=50_000)
    assert choose_limits(Sources(suspected=suspected)).context == 50_000
    assert choose_limits(Sources(suspected=suspected, table=Limits(context=32_000))).context == 32_000
    assert choose_limits(Sources(suspected=suspected, listed=Limits(context=64_000))).context == 50_000
    assert choose_limits(Sources(suspected=suspected, configured=Limits(context=64_000))).context == 64_000


@given(_LIMITS, _LIMITS, _LIMITS, _LIMITS, _LIMITS, st.booleans())
def test_configured_limits_never_change(
    configured: Limits, listed: Limits, proven: Limits, suspected: Limits, table: Limits, long_window: bool
) -> None:
    chosen = choose_limits(
        Sources(
            configured=configured,
            listed=listed,
            proven=proven,
            suspected=suspected,
            table=table,
            has_long_window=long_window,
        )
    )
    for ours, result in zip(astuple(configured), astuple(chosen), strict=True):
        assert result == ours or not ours


def test_the_long_window_replaces_list_and_table() -> None:
    table, listed = Limits(context=200_000, output=64_000), Limits(input=200_000)
    known = choose_limits(Sources(table=table, listed=listed, has_long_window=True))
    assert known == Limits(context=1_000_000, output=64_000)
    refused = choose_limits(Sources(table=table, proven=Limits(context=200_000), has_long_window=True))
    assert refused.context == 200_000
    set_by_hand = Sources(table=table, configured=Limits(context=300_000), has_long_window=True)
    assert choose_limits(set_by_hand).context == 300_000
    assert choose_limits(Sources(table=Limits(context=2_000_000), has_long_window=True)).context == 2_000_000


_CONVERSATION = converse(
    [{"role": role, "content": "a"} for role in ("user", "assistant") * 2]
    + [{"role": "user", "content": "e"}]
)
_SIZES = Sizes(messages=[Size(1_000, 4_000)] * 5, environment=500)
_HEAD = make_head(_CONVERSATION, length=3, prompt_tokens=4_200, output_tokens=40)
_SETTLED = Calibration(1.2, 3)


def test_usage_is_compared_with_the_last_one_and_with_a_full_estimate() -> None:
    expected = expect_usage(_CONVERSATION, _SIZES, None, (), _HEAD, _SETTLED)
    assert expected == Expected(before=4_200, added=2_000, whole=6_600)


def test_the_active_view_is_measured_as_sent() -> None:
    batch = make_batch(_CONVERSATION, [Mark(1)], length=3)
    head = replace(_HEAD, batches=(batch.key,))
    expected = expect_usage(_CONVERSATION, _SIZES, None, (batch,), head, _SETTLED)
    assert expected == Expected(before=4_200, added=2_000, whole=int(1.2 * (5_500 - 984)))


def test_no_usage_is_expected_without_a_comparable_one() -> None:
    for before in (
        None,
        replace(_HEAD, prompt_tokens=0),
        replace(_HEAD, pivot="00"),
        replace(_HEAD, batches=("00",)),
    ):
        assert expect_usage(_CONVERSATION, _SIZES, None, (), before, _SETTLED) is None
    pivot = make_pivot(_CONVERSATION, 3)
    assert expect_usage(_CONVERSATION, _SIZES, pivot, (), _HEAD, _SETTLED) is None
