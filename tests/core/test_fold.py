"""A history that one call cannot hold is folded in chunks of whole groups."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.conversation import is_boundary
from gateway.core.cut import Cut
from gateway.core.estimate import Sizes
from gateway.core.fold import ATTEMPTS, Attempt, shrink_cut
from gateway.core.view import Size
from gateway.core.weights import Weights
from tests.conversations import JSON, conversations, converse


def make_weights(count: int) -> Weights:
    sizes = Sizes(messages=[Size(10, 40)] * count, environment=0)
    return Weights(sizes, [10.0] * count, 0.0, 1.0)


def make_cut(start: int, covers: int) -> Cut:
    return Cut(base=None, start=start, covers=covers, folded=10 * (covers - start), cap=5, opening_chars=None)


@given(conversations(min_turns=1), st.sampled_from(ATTEMPTS))
def test_a_chunk_ends_at_a_boundary_inside_the_cut(messages: list[JSON], attempt: Attempt) -> None:
    conversation = converse(messages)
    count = len(conversation.messages)
    covers = max((at for at in range(1, count + 1) if is_boundary(conversation, at)), default=count)
    cut = make_cut(0, covers)
    part = shrink_cut(conversation, make_weights(count), cut, attempt.share)
    assert 0 < part.covers <= cut.covers
    assert is_boundary(conversation, part.covers)
    assert part.folded == 10 * part.covers


def test_attempts_grow_stricter_and_cut_what_people_say_last() -> None:
    shares = [attempt.share for attempt in ATTEMPTS]
    assert shares == sorted(shares, reverse=True)
    assert ATTEMPTS[0].share == 1.0 and ATTEMPTS[0].tool_chars is None
    assert all(attempt.text_chars is None for attempt in ATTEMPTS[:-2])
