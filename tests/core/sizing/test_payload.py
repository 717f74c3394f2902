from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.message import Message
from gateway.core.history.view import Size, View
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.estimate import Calibration, Known, Sizes
from gateway.core.sizing.payload import MeasuredRequest, Payload, is_near_limit, with_payload

_KNOWN = Known(head=None, head_view=View(None, {}), calibration=Calibration(2.0, 1))
_COUNTS = st.integers(0, 50_000)


def make_message(size_bytes: int, has_media: bool = False) -> Message:
    return Message("user", b"key", b"digest", size_bytes, has_media=has_media)


@given(st.lists(st.tuples(_COUNTS, _COUNTS), max_size=5), _COUNTS)
def test_far_below_its_limits_a_request_is_unchanged(pairs: list[tuple[int, int]], around: int) -> None:
    sizes = Sizes(messages=[Size(tokens, 4 * tokens) for tokens, _ in pairs], environment=10)
    messages = [make_message(size_bytes) for _, size_bytes in pairs]
    payload = Payload(sum(message.size_bytes for message in messages) + around, messages)
    for limits in (Limits(context=1_000), Limits(body_bytes=2 * payload.body_bytes + 1), Limits(images=4)):
        request = MeasuredRequest(sizes, _KNOWN, limits)
        assert with_payload(request, payload) is request
        assert not is_near_limit(limits, payload)


def test_near_the_byte_limit_a_message_counts_for_its_share_of_it() -> None:
    sizes = Sizes(messages=[Size(100, 400), Size(100, 400)], environment=50)
    payload = Payload(1_000, [make_message(800), make_message(100)])
    limits = Limits(context=10_000, body_bytes=1_000)
    assert is_near_limit(limits, payload)
    scaled = with_payload(MeasuredRequest(sizes, _KNOWN, limits), payload)
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
    scaled = with_payload(MeasuredRequest(sizes, _KNOWN, limits), payload)
    window = scaled.limits.context or 0
    assert [size.tokens for size in scaled.sizes.messages] == [window // 5, 3 * window // 5, 20]


def test_an_unknown_window_gets_a_stand_in_only_if_needed() -> None:
    sizes = Sizes(messages=[Size(5, 20)], environment=0)
    payload = Payload(90, [make_message(90)])

    def limits_for(limits: Limits) -> Limits:
        return with_payload(MeasuredRequest(sizes, _KNOWN, limits), payload).limits

    assert limits_for(Limits()) == Limits()
    assert limits_for(Limits(body_bytes=100)).context
    assert limits_for(Limits(context=7, body_bytes=100)) == Limits(context=7, body_bytes=100)


def test_the_kept_part_stays_the_same_share() -> None:
    sizes = Sizes(messages=[Size(100, 40, kept=25)], environment=0)
    request = MeasuredRequest(sizes, _KNOWN, Limits(context=1_000, body_bytes=1_000))
    scaled = with_payload(request, Payload(900, [make_message(900)]))
    assert scaled.sizes.messages == [Size(900, 40, 0, 225)]
