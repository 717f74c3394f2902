from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limits.model_limits import Limits, Sources, choose_limits, has_long_window, is_plausible

_FIELD = st.one_of(st.none(), st.integers(0, 3))
_LIMITS = st.builds(Limits, context=_FIELD, input=_FIELD, output=_FIELD, body_bytes=_FIELD, images=_FIELD)


def test_defaults_apply_field_by_field_and_zero_is_unset() -> None:
    ours, other = Limits(context=16_000, output=0), Limits(context=8_000, input=4_000, output=2_000)
    assert ours.with_defaults(other) == Limits(context=16_000, input=4_000, output=2_000)


@given(_LIMITS, _LIMITS, _LIMITS)
def test_the_order_of_sources_matters_and_how_they_are_grouped_does_not(
    a: Limits, b: Limits, c: Limits
) -> None:
    assert a.with_defaults(b).with_defaults(c) == a.with_defaults(b.with_defaults(c))


@given(_LIMITS)
def test_the_result_never_contains_zero(limits: Limits) -> None:
    nothing = Limits(context=0, input=0, output=0, body_bytes=0, images=0)
    assert 0 not in astuple(limits.with_defaults(nothing))
    assert 0 not in astuple(limits.with_caps(nothing))


@given(_LIMITS, _LIMITS)
def test_caps_apply_field_by_field(a: Limits, b: Limits) -> None:
    both = a.with_caps(b)
    assert both == b.with_caps(a)
    for ours, other, result in zip(astuple(a), astuple(b), astuple(both), strict=True):
        assert result == min((each for each in (ours, other) if each), default=None)


def test_a_window_of_no_model_is_not_plausible() -> None:
    assert [is_plausible(n) for n in (-1, 0, 255, 256, 100_000_000, 100_000_001)] == [
        *(False, False, False),
        *(True, True, False),
    ]


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


FLAG = b"context-1m-2025-08-07"


@pytest.mark.system(16)
@pytest.mark.parametrize(
    "model",
    [
        "claude-sonnet-4-20250514",
        "claude-sonnet-4-5-20250929",
        "anthropic/claude-sonnet-4.5",
        "us.anthropic.claude-sonnet-4-20250514-v1:0",
        "claude-4-sonnet",
    ],
)
def test_a_sonnet_with_the_flag_has_the_long_window(model: str) -> None:
    assert has_long_window(model, [(b"Anthropic-Beta", FLAG)])
    assert not has_long_window(model, [(b"Anthropic-Version", FLAG)])
    assert not has_long_window(model, [])


@pytest.mark.system(16)
@pytest.mark.parametrize(
    "model",
    ["claude-opus-4-5", "gpt-4o", "", "claude-3-5-sonnet-20241022", "claude-3.7-sonnet", "sonnet-3.5"],
)
def test_no_other_model_has_the_long_window(model: str) -> None:
    assert not has_long_window(model, [(b"anthropic-beta", FLAG)])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"oauth-2025-04-20, " + FLAG + b",x"], True),
        ([b"oauth-2025-04-20", FLAG], True),
        ([FLAG + b"x"], False),
        ([b"no-" + FLAG], False),
        ([FLAG[:-1]], False),
        ([b""], False),
    ],
)
def test_the_flag_is_one_of_a_list(values: list[bytes], expected: bool) -> None:
    headers = [(b"anthropic-beta", value) for value in values]
    assert has_long_window("claude-sonnet-4-5", headers) is expected


@given(st.text(), st.lists(st.tuples(st.binary(), st.binary())))
def test_any_model_and_headers_are_accepted(model: str, headers: list[tuple[bytes, bytes]]) -> None:
    assert not has_long_window(model, headers)
    assert not has_long_window(f"sonnet{model}", [(b"anthropic-beta", value + b"-") for _, value in headers])
