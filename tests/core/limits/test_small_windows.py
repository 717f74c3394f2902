import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.limits.model_limits import Limits
from gateway.core.limits.small_windows import SmallWindow, find_small_window
from gateway.core.limits.thresholds import RequestSize, choose_thresholds, count_turns_that_fit
from gateway.core.policy import Policy, Trigger

_ADAPTIVE = Policy()


def find(window: int, floor: int, turn: float, policy: Policy = _ADAPTIVE) -> SmallWindow | None:
    return find_small_window(policy, Limits(context=window), RequestSize(turn=turn, floor=floor), floor)


# Between floor and 0.75 x window: seven turns, one of them tail, and a summary of 1,024 tokens or ½ turn.
@pytest.mark.parametrize(
    ("window", "floor", "turn", "turns", "sufficient"),
    [
        # Codex and Qwen Code in the agents' tests: 18,000 - 8,000 - 1,024 = 4.7 x 1,920.
        (24_000, 8_000, 1_920, 3, 30_000),
        (48_000, 16_000, 3_840, 3, 60_000),
        # Large outputs can be too much for a large window, too.
        (200_000, 60_000, 16_000, 4, 235_000),
        # Not even one.
        (16_000, 11_000, 1_000, 0, 26_000),
    ],
)
def test_a_window_that_holds_fewer_than_six_turns_is_small(
    window: int, floor: int, turn: float, turns: int, sufficient: int
) -> None:
    found = find(window, floor, turn)
    assert found is not None
    assert (found.window, found.floor, found.turn) == (window, floor, int(turn))
    assert (found.turns, found.wanted_turns, found.sufficient) == (turns, 6, sufficient)
    assert find(sufficient, floor, turn) is None
    assert find(sufficient - 1_000, floor, turn) is not None


@pytest.mark.parametrize(("window", "floor", "turn"), [(24_000, 8_000, 1_280), (200_000, 60_000, 10_000)])
def test_a_window_that_holds_six_turns_is_not(window: int, floor: int, turn: float) -> None:
    assert find(window, floor, turn) is None


@example(7_001, 1.0, 1.0, None, 7_001, 6_969)
@given(
    st.integers(4_000, 2_000_000),
    st.floats(0, 1),
    st.floats(1, 1e6),
    st.one_of(st.none(), st.integers(1, 200_000)),
    st.integers(0, 100_000),
    st.integers(0, 50_000),
)
def test_six_turns_fit_or_the_window_that_is_named_holds_them(
    window: int, share: float, turn: float, requested: int | None, minimum: int, more_opening: int
) -> None:
    floor = int(share * window)
    size = RequestSize(requested=requested, turn=turn, floor=floor, minimum_reply=minimum)
    thresholds = choose_thresholds(_ADAPTIVE, Limits(context=window), size)
    assert thresholds is not None
    found = find_small_window(_ADAPTIVE, Limits(context=window), size, floor + more_opening)
    assert (found is None) == (count_turns_that_fit(thresholds, size) >= 6)
    if found is None:
        return
    assert 0 <= found.turns < 6 and found.sufficient is not None
    larger = Limits(context=found.sufficient)
    whole = RequestSize(requested=requested, turn=turn, floor=floor + more_opening, minimum_reply=minimum)
    assert find_small_window(_ADAPTIVE, larger, whole, whole.floor) is None


@given(
    st.integers(2_000, 500_000),
    st.integers(1_000, 500_000),
    st.one_of(st.none(), st.integers(1, 100_000)),
    st.floats(1, 1e5),
    st.floats(0, 1),
)
def test_the_window_that_is_named_is_larger_also_where_the_prompt_has_a_limit(
    context: int, most: int, output: int | None, turn: float, share: float
) -> None:
    limits = Limits(context=context, input=most, output=output)
    size = RequestSize(turn=turn, floor=int(share * most))
    found = find_small_window(_ADAPTIVE, limits, size, size.floor)
    assert found is None or (found.sufficient is not None and found.sufficient > found.window)


def test_a_limit_on_the_prompt_can_be_what_is_small() -> None:
    limits = Limits(context=200_000, input=20_000, output=8_000)
    found = find_small_window(_ADAPTIVE, limits, RequestSize(turn=2_000, floor=10_000), 10_000)
    assert found is not None
    # The prompt, and the reserve for a reply.
    assert (found.window, found.sufficient) == (28_000, 34_000)


def test_nothing_is_said_where_nothing_is_known_or_wanted() -> None:
    assert find(24_000, 8_000, 0.0) is None
    assert find(24_000, 8_000, 1_920, Policy(trigger=Trigger(fewest_turns=0))) is None
    assert find(24_000, 8_000, 1_920, Policy(trigger=Trigger(formula="source"))) is None
    size = RequestSize(turn=1_920, floor=8_000)
    assert find_small_window(_ADAPTIVE, Limits(), size, 8_000) is None


def test_turns_that_no_window_holds_have_no_sufficient_one() -> None:
    found = find(24_000, 8_000, 1e9)
    assert found is not None and found.sufficient is None
    assert str(found).endswith("and fewer than 6 turns fit between two compactions")


def test_the_warning_has_the_numbers() -> None:
    assert str(find(24_000, 8_000, 4_000)) == (
        "the window of 24000 tokens is small for this client: system prompt, tools and task take 8000, a turn"
        " adds 4000 on average, and fewer than 6 turns fit between two compactions; 51000 tokens would hold 6"
    )
