import pytest

from gateway.core.compaction.edit import EMPTY, find_edit_flaw
from gateway.core.compaction.summary import SummaryBounds


def bounds(replaced: int = 10_000, cap: int = 1_000) -> SummaryBounds:
    return SummaryBounds(replaced_tokens=replaced, cap_tokens=cap)


@pytest.mark.parametrize("text", ["", "  \n\t"])
def test_an_empty_text_is_refused(text: str) -> None:
    assert find_edit_flaw(text, 0, bounds()) is EMPTY


def test_the_cap_has_the_tolerance_of_a_models_reply() -> None:
    assert find_edit_flaw("Text.", 1_250, bounds()) is None
    flaw = find_edit_flaw("Text.", 1_251, bounds())
    assert flaw is not None and "1251 tokens; at most 1250" in flaw.reason


def test_without_a_known_window_there_is_no_cap() -> None:
    assert find_edit_flaw("Text.", 8_000, bounds(cap=0)) is None


def test_a_text_that_is_not_smaller_than_what_it_replaces_is_refused() -> None:
    assert find_edit_flaw("Text.", 900, bounds(replaced=1_000)) is None
    flaw = find_edit_flaw("Text.", 901, bounds(replaced=1_000))
    assert flaw is not None and "10 % smaller" in flaw.reason


def test_a_persons_words_are_not_taken_for_a_refusal() -> None:
    assert find_edit_flaw("I'm sorry, I can't help with the old plan.", 12, bounds()) is None
