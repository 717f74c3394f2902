from hypothesis import given
from hypothesis import strategies as st

from gateway.core.limits import Limits

_FIELD = st.one_of(st.none(), st.integers(0, 3))
_LIMITS = st.builds(Limits, context=_FIELD, input=_FIELD, output=_FIELD)


def test_the_better_source_decides_field_by_field_and_zero_is_unset() -> None:
    ours, other = Limits(context=16_000, output=0), Limits(context=8_000, input=4_000, output=2_000)
    assert ours.with_defaults(other) == Limits(context=16_000, input=4_000, output=2_000)


@given(_LIMITS, _LIMITS, _LIMITS)
def test_the_order_of_sources_matters_and_how_they_are_grouped_does_not(
    a: Limits, b: Limits, c: Limits
) -> None:
    assert a.with_defaults(b).with_defaults(c) == a.with_defaults(b.with_defaults(c))


@given(_LIMITS)
def test_zero_never_comes_out(limits: Limits) -> None:
    filled = limits.with_defaults(Limits(context=0, input=0, output=0))
    assert 0 not in (filled.context, filled.input, filled.output)
