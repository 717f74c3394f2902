"""How large a request is for its upstream: estimates, calibration, averages, bytes and pictures."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.conversation import Conversation
from gateway.core.history.message import Message
from gateway.core.history.pivot import Mark
from gateway.core.history.view import Size, View, make_view
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.calibrated_sizes import Step, calibrate_sizes, choose_ratio, estimate_view
from gateway.core.sizing.estimate import (
    Calibration,
    Estimate,
    Known,
    MeasuredRequest,
    Payload,
    Sizes,
    average_turn,
    is_near_limit,
    upper_bound_tokens,
    with_payload,
)
from tests.decisions.builders import (
    JSON,
    NOTHING,
    bodies,
    converse,
    make_batch,
    make_head,
    make_pivot,
    measure_sizes,
    read,
)

_NEW = Calibration()
_CONVERSATION = converse(
    [{"role": role, "content": "a"} for role in ("user", "assistant") * 2]
    + [{"role": "user", "content": "e"}]
)
_HEAD = make_head(_CONVERSATION, length=3, prompt_tokens=700, output_tokens=40)


def learn(ratios: Sequence[float], known: Calibration = _NEW) -> Calibration:
    for ratio in ratios:
        known = known.with_sample(round(ratio * 10_000), 10_000)
    return known


@given(st.lists(st.floats(1.1, 1.2), min_size=1, max_size=12), st.floats(0.5, 8.0), st.integers(0, 12))
def test_a_single_outlier_never_leaves_the_range_of_the_others(
    honest: list[float], wild: float, place: int
) -> None:
    known = learn(honest[: max(place, 1)])
    for ratio in (wild, *honest[max(place, 1) :]):
        known = learn([ratio], known)
        assert 1.0999 <= known.ratio <= 1.2001


@given(bodies(), st.floats(0.2, 0.99))
def test_the_upper_bound_holds_for_any_tokenizer_with_at_most_one_token_per_byte(
    body: bytes, share: float
) -> None:
    received = read(body)
    bound = upper_bound_tokens(received.conversation.messages, None, len(body))
    if any(message.has_media for message in received.conversation.messages):
        assert bound is None
    else:
        assert bound is not None and bound >= int(share * len(body))


def test_the_upper_bound_after_a_head_counts_the_bytes_added_since() -> None:
    added = sum(message.size_bytes + 16 for message in _CONVERSATION.messages[3:])
    assert upper_bound_tokens(_CONVERSATION.messages[3:], _HEAD, 10**6) == 740 + added


_TALK: list[JSON] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
    {"role": "user", "content": "e"},
]
_CONVERSATION_OF_CALIBRATED_SIZES = converse(_TALK)
_SIZES = Sizes(messages=[Size(100, 400)] * 5, environment=50)
_UNKNOWN = Known(head=None, head_view=NOTHING, calibration=Calibration())
# Three messages and the environment have 350 raw tokens; upstream counted 700.
_HEAD_OF_CALIBRATED_SIZES = make_head(
    _CONVERSATION_OF_CALIBRATED_SIZES, length=3, prompt_tokens=700, output_tokens=250
)
_KNOWN = replace(_UNKNOWN, head=_HEAD_OF_CALIBRATED_SIZES)


def estimate(conversation: Conversation, sizes: Sizes, known: Known, view: View) -> Estimate:
    return estimate_view(conversation, calibrate_sizes(conversation, sizes, known), known, view)


def test_without_usage_the_estimate_is_the_raw_size_with_a_large_margin() -> None:
    found = estimate(_CONVERSATION_OF_CALIBRATED_SIZES, _SIZES, _UNKNOWN, NOTHING)
    assert (found.tokens, found.unsure) == (550, int(550 * 0.7))


def test_a_calibration_reduces_the_margin() -> None:
    known = replace(_UNKNOWN, calibration=Calibration(2.0, 1))
    found = estimate(_CONVERSATION_OF_CALIBRATED_SIZES, _SIZES, known, NOTHING)
    assert (found.tokens, found.unsure) == (1_100, 275)


def test_only_messages_added_since_the_last_usage_are_estimated() -> None:
    # The reply is message 3: 200 by the ratio of 2, but 250 by its output tokens. Message 4 has 200.
    assert calibrate_sizes(_CONVERSATION_OF_CALIBRATED_SIZES, _SIZES, _KNOWN).ratio == 2.0
    found = estimate(_CONVERSATION_OF_CALIBRATED_SIZES, _SIZES, _KNOWN, NOTHING)
    assert (found.tokens, found.unsure) == (700 + 250 + 200, 112)


@pytest.mark.parametrize(("output", "reply"), [(40, 200), (250, 250), (300, 300), (301, 200), (9_000, 200)])
def test_a_reply_costs_its_output_tokens_unless_most_were_thinking(output: int, reply: int) -> None:
    known = replace(_KNOWN, head=replace(_HEAD_OF_CALIBRATED_SIZES, output_tokens=output))
    assert estimate(_CONVERSATION_OF_CALIBRATED_SIZES, _SIZES, known, NOTHING).tokens == 700 + reply + 200


def make_past(*told: tuple[int, int]) -> Known:
    """Heads by length and prompt; the last one is the nearest."""
    heads = [
        replace(_HEAD_OF_CALIBRATED_SIZES, length=length, prompt_tokens=prompt, output_tokens=0)
        for length, prompt in told
    ]
    return replace(_KNOWN, head=heads[-1], past=heads)


def test_the_difference_of_two_prompts_is_the_cost_of_the_messages_between_them() -> None:
    known = make_past((1, 150), (3, 750))
    found = calibrate_sizes(_CONVERSATION_OF_CALIBRATED_SIZES, _SIZES, known)
    assert (found.environment, found.messages[:3]) == (50.0, [100.0, 300.0, 300.0])
    assert found.ratio == pytest.approx(750 / 350)


def test_added_messages_cost_as_much_as_steps_of_similar_content() -> None:
    code, chinese = Size(1_000, 4_000), Size(1_000, 1_400)
    sizes = Sizes(messages=[code, code, chinese, code, chinese], environment=0)
    known = make_past((1, 1_000), (2, 2_000), (3, 4_000))
    found = calibrate_sizes(_CONVERSATION_OF_CALIBRATED_SIZES, sizes, known)
    assert found.messages == [1_000, 1_000, 2_000, 1_000, 2_000]
    assert found.ratio == 1.0


def test_a_step_with_hidden_reasoning_does_not_determine_the_ratio() -> None:
    sizes = Sizes(messages=[Size(1_000, 4_000)] * 5, environment=0)
    known = make_past((1, 1_200), (2, 6_200), (3, 7_400))
    assert calibrate_sizes(_CONVERSATION_OF_CALIBRATED_SIZES, sizes, known).messages[3:] == [1_200, 1_200]


def test_text_that_upstream_adds_counts_as_environment() -> None:
    sizes = Sizes(messages=[Size(1_000, 4_000)] * 5, environment=100)
    known = make_past((1, 9_900), (2, 11_100), (3, 12_300))
    found = calibrate_sizes(_CONVERSATION_OF_CALIBRATED_SIZES, sizes, known)
    assert found.messages == [1_200] * 5
    assert found.environment == 9_900 - 1_200
    assert found.total(NOTHING) == 12_300 + 2 * 1_200


def test_behind_a_restart_the_whole_prompt_tells_of_the_environment_and_steps_of_messages() -> None:
    """Memory has the responses since then alone, and all were sent with a pivot."""
    sizes = Sizes(messages=[Size(1_000, 4_000)] * 5, environment=10_000)
    pivot = make_pivot(_CONVERSATION_OF_CALIBRATED_SIZES, 2, tokens=900, opening_tokens=1_100)
    known = make_past((3, 13_000 * 11 // 10), (4, 13_000 * 11 // 10 + 900))
    past = [replace(head, pivot=pivot.key) for head in known.past]
    known = replace(known, head=past[-1], past=past, head_view=make_view(pivot, ()))
    found = calibrate_sizes(_CONVERSATION_OF_CALIBRATED_SIZES, sizes, known)
    assert found.environment == pytest.approx(11_000)
    assert found.messages[2:4] == [pytest.approx(1_100), 900]
    # The next pivot leaves out messages 2 and 3; only that of the step is known by itself.
    later = make_pivot(_CONVERSATION_OF_CALIBRATED_SIZES, 4, tokens=900, opening_tokens=1_100)
    assert found.left_out(known.head_view, make_view(later, ())) == pytest.approx(1_100)


@given(bodies(min_turns=1), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9_000)), max_size=4))
def test_calibrated_sizes_are_never_negative_and_their_sum_is_the_total(
    body: bytes, told: list[tuple[int, int]]
) -> None:
    received = read(body)
    count = len(received.conversation.messages)
    told = [(min(length, count), prompt) for length, prompt in sorted(told)]
    known = make_past(*told) if told else _UNKNOWN
    found = calibrate_sizes(received.conversation, measure_sizes(received), known)
    assert len(found.messages) == count
    assert min([found.environment, *found.messages]) >= 0
    assert found.total(NOTHING) == pytest.approx(found.environment + sum(found.messages))


def test_the_same_request_again_has_the_known_usage() -> None:
    sizes = replace(_SIZES, messages=_SIZES.messages[:3])
    found = estimate(converse(_TALK[:3]), sizes, _KNOWN, NOTHING)
    assert (found.tokens, found.unsure) == (700, 0)


def test_another_view_is_estimated_by_the_ratio_of_the_conversation() -> None:
    pivot = make_pivot(_CONVERSATION_OF_CALIBRATED_SIZES, 3, tokens=20, opening_tokens=100)
    found = estimate(_CONVERSATION_OF_CALIBRATED_SIZES, _SIZES, _KNOWN, make_view(pivot, ()))
    assert (found.tokens, found.unsure) == (2 * (50 + 20 + 100) + 250 + 200, 151)
    marked = make_view(None, [make_batch(_CONVERSATION_OF_CALIBRATED_SIZES, [Mark(0)])])
    assert estimate(_CONVERSATION_OF_CALIBRATED_SIZES, _SIZES, _KNOWN, marked).tokens == 2 * (550 - 84) + 50


@pytest.mark.parametrize("prompt", [1, 10**7])
def test_implausible_usage_does_not_determine_the_ratio(prompt: int) -> None:
    known = replace(
        _KNOWN, head=replace(_HEAD_OF_CALIBRATED_SIZES, prompt_tokens=prompt), calibration=Calibration(1.5, 3)
    )
    assert calibrate_sizes(_CONVERSATION_OF_CALIBRATED_SIZES, _SIZES, known).ratio == 1.5


def make_step(ratio: float, size: Size) -> Step:
    return Step(slice(0, 1), round(ratio * size.tokens), size)


def test_the_ratio_is_the_weighted_median() -> None:
    small = [make_step(3.0, Size(500, 2_000))] * 3
    assert choose_ratio([make_step(1.0, Size(20_000, 80_000)), *small]) == 1.0
    assert choose_ratio([make_step(1.0, Size(500, 2_000)), *small]) == 3.0


_USER: JSON = {"role": "user", "content": "Go on."}
_CALL: JSON = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look"}}]}
_RESULT: JSON = {"role": "tool", "tool_call_id": "c", "content": "x"}


def test_a_conversation_without_a_reply_has_no_turns() -> None:
    assert average_turn(converse([_USER, _USER]), [500.0, 500.0]) == 0


def test_the_opening_does_not_count() -> None:
    conversation = converse([_USER, *[_CALL, _RESULT] * 8])
    assert average_turn(conversation, [9_000.0, *[100.0, 300.0] * 8]) == 400


def test_what_the_client_adds_belongs_to_the_turn_before() -> None:
    conversation = converse([_USER, *[_CALL, _RESULT, _USER, _USER] * 6])
    assert average_turn(conversation, [0.0, *[100.0, 300.0, 10.0, 20.0] * 6]) == 430


@pytest.mark.parametrize(("turns", "average"), [(1, 100), (3, 300), (6, 600), (12, 600)])
def test_turns_that_are_missing_of_six_count_as_empty(turns: int, average: float) -> None:
    conversation = converse([_USER, *[_CALL, _RESULT] * turns])
    assert average_turn(conversation, [0.0, *[100.0, 500.0] * turns]) == average


def test_one_large_output_does_not_double_the_average() -> None:
    conversation = converse([_USER, *[_CALL, _RESULT] * 40])
    sizes = [0.0, *[100.0, 900.0] * 39, 100.0, 20_900.0]
    assert average_turn(conversation, sizes) == pytest.approx(1_000 + 20_000 / 24)


def test_only_the_newest_turns_count() -> None:
    conversation = converse([_USER, *[_CALL, _RESULT] * 100])
    assert average_turn(conversation, [0.0, *[9_000.0, 9_000.0] * 76, *[100.0, 400.0] * 24]) == 500


_KNOWN_OF_PAYLOAD = Known(head=None, head_view=View(None, {}), calibration=Calibration(2.0, 1))
_COUNTS = st.integers(0, 50_000)


def make_message(size_bytes: int, has_media: bool = False) -> Message:
    return Message("user", b"key", b"digest", size_bytes, has_media=has_media)


@given(st.lists(st.tuples(_COUNTS, _COUNTS), max_size=5), _COUNTS)
def test_far_below_its_limits_a_request_is_unchanged(pairs: list[tuple[int, int]], around: int) -> None:
    sizes = Sizes(messages=[Size(tokens, 4 * tokens) for tokens, _ in pairs], environment=10)
    messages = [make_message(size_bytes) for _, size_bytes in pairs]
    payload = Payload(sum(message.size_bytes for message in messages) + around, messages)
    for limits in (Limits(context=1_000), Limits(body_bytes=2 * payload.body_bytes + 1), Limits(images=4)):
        request = MeasuredRequest(sizes, _KNOWN_OF_PAYLOAD, limits)
        assert with_payload(request, payload) is request
        assert not is_near_limit(limits, payload)


def test_near_the_byte_limit_a_message_counts_for_its_share_of_it() -> None:
    sizes = Sizes(messages=[Size(100, 400), Size(100, 400)], environment=50)
    payload = Payload(1_000, [make_message(800), make_message(100)])
    limits = Limits(context=10_000, body_bytes=1_000)
    assert is_near_limit(limits, payload)
    scaled = with_payload(MeasuredRequest(sizes, _KNOWN_OF_PAYLOAD, limits), payload)
    # 800 and 100 of 1,000 bytes. The 200 true tokens of the second one are less than its share.
    assert [size.tokens for size in scaled.sizes.messages] == [8_000, 1_000]
    assert scaled.sizes.environment == 1_000
    assert scaled.known.is_calibrated and scaled.known.head is None
    assert scaled.limits == limits


def test_near_the_picture_limit_a_picture_counts_for_its_share_of_it() -> None:
    sizes = Sizes(messages=[Size(900, 0, 1), Size(4_000, 0, 3), Size(10, 40)], environment=0)
    payload = Payload(5_000, [make_message(10, True), make_message(10, True), make_message(10)])
    limits = Limits(images=5)
    assert is_near_limit(limits, payload)
    scaled = with_payload(MeasuredRequest(sizes, _KNOWN_OF_PAYLOAD, limits), payload)
    window = scaled.limits.context or 0
    assert [size.tokens for size in scaled.sizes.messages] == [window // 5, 3 * window // 5, 20]


def test_the_kept_part_stays_the_same_share() -> None:
    sizes = Sizes(messages=[Size(100, 40, kept=25)], environment=0)
    request = MeasuredRequest(sizes, _KNOWN_OF_PAYLOAD, Limits(context=1_000, body_bytes=1_000))
    scaled = with_payload(request, Payload(900, [make_message(900)]))
    assert scaled.sizes.messages == [Size(900, 40, 0, 225)]
