from gateway.core.limits.model_limits import Limits
from gateway.core.limits.thresholds import Thresholds
from gateway.core.policy import Policy
from tests.builders.chat import make_turn, read, render
from tests.builders.state import make_head

_RECEIVED = read(render([{"role": "user", "content": "Fix it."}], 1))
_LIMITS = Limits(context=100_000)


def test_usage_of_the_head_counts_in_the_same_scope_only() -> None:
    head = make_head(_RECEIVED.conversation, scope="here")
    assert make_turn(_RECEIVED, head=head, scope="here").own_head is head
    assert make_turn(_RECEIVED, head=head, scope="elsewhere").own_head is None


def test_a_head_without_usage_counts_for_no_request() -> None:
    head = make_head(_RECEIVED.conversation, scope="here", prompt_tokens=0)
    assert make_turn(_RECEIVED, head=head, scope="here").own_head is None


def test_near_is_a_quarter_of_the_soft_threshold() -> None:
    turn = make_turn(_RECEIVED).with_limits(_LIMITS)
    assert turn.thresholds is not None
    quarter = turn.thresholds.soft / 4
    assert turn.is_near(int(quarter) + 1) and not turn.is_near(int(quarter) - 1)


def test_nothing_is_near_where_no_limit_is_known() -> None:
    assert not make_turn(_RECEIVED).is_near(10**9)


def test_other_limits_move_the_thresholds() -> None:
    wide, narrow = (
        make_turn(_RECEIVED).with_limits(_LIMITS),
        make_turn(_RECEIVED).with_limits(Limits(context=9_000)),
    )
    assert _soft(wide.thresholds) > _soft(narrow.thresholds)
    assert narrow.limits == Limits(context=9_000)


def test_growth_lowers_the_soft_threshold() -> None:
    head = make_head(_RECEIVED.conversation, growth_tokens=5_000.0)
    calm, growing = make_turn(_RECEIVED), make_turn(_RECEIVED, head=head)
    assert (calm.growth, growing.growth) == (0.0, 5_000.0)
    assert _soft(growing.with_limits(_LIMITS).thresholds) < _soft(calm.with_limits(_LIMITS).thresholds)


def test_instructions_are_added_to_those_of_the_policy() -> None:
    once = make_turn(_RECEIVED).with_instructions("Keep the names.", None)
    twice = once.with_instructions("Keep the paths.", None)
    assert once.policy.summary.instructions == "Keep the names."
    assert twice.policy.summary.instructions == "Keep the names.\n\nKeep the paths."
    assert twice.policy.prompts == Policy().prompts


def test_a_prompt_takes_the_place_of_the_instruction() -> None:
    turn = make_turn(_RECEIVED).with_instructions("", "Say it in one line.")
    assert turn.policy.prompts.instruction == "Say it in one line."


def test_an_encoded_body_weighs_beside_the_decoded_one() -> None:
    plain, encoded = make_turn(_RECEIVED), make_turn(_RECEIVED, raw_body=b"x" * 50)
    assert plain.weight_bytes >= len(_RECEIVED.body.data) + _RECEIVED.facts_bytes
    assert encoded.weight_bytes == plain.weight_bytes + 50


def test_a_turn_tells_what_its_request_says() -> None:
    turn = make_turn(_RECEIVED)
    assert (turn.owner, turn.model, turn.requested_tokens) == ("t", "toy", 3_000)
    assert (turn.meter.upstream, turn.meter.model) == ("toy", "toy")
    assert str(turn.url) == "http://127.0.0.1:1/v1/chat/completions"
    assert not turn.has_long_window


def _soft(thresholds: Thresholds | None) -> int:
    assert thresholds is not None
    return thresholds.soft
