"""The toy's tokenizer is deterministic, adds up, and is near a real one."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planning.tokenizer import Tokenizer
from tests.toy.agent import PLAIN, make_session
from tests.toy.counting import TokenCounter, count_text
from tests.toy.material import KINDS, make_prose, make_tool_text

_ROOT = Path(__file__).parent.parent.parent


@given(st.text())
def test_any_text_has_a_count_and_a_bias_scales_it(text: str) -> None:
    assert TokenCounter(1.6).text(text) >= TokenCounter(1.0).text(text) >= TokenCounter(0.7).text(text) >= 0


@given(st.text(max_size=400), st.integers(0, 60))
def test_a_cut_text_is_a_beginning_within_the_limit(text: str, limit_tokens: int) -> None:
    counter = TokenCounter(1.3)
    kept = counter.cut(text, limit_tokens)
    assert text.startswith(kept)
    assert counter.text(kept) <= limit_tokens


def test_a_prompt_is_the_sum_of_its_parts() -> None:
    session, counter = make_session(12, 3), TokenCounter(1.2)
    added = [counter.messages([turn.assistant, *turn.followers]) for turn in session.turns[:11]]
    first, last = (counter.prompt(session.envelope(turn, PLAIN)) for turn in (0, 11))
    assert last == first + sum(added)


@pytest.mark.parametrize("kind", [*KINDS, "prose"])
def test_at_bias_one_the_counts_are_within_a_fifth_of_tiktoken(kind: str) -> None:
    rng = random.Random(4)
    text = make_prose(rng, 3_000) if kind == "prose" else make_tool_text(rng, kind, 3_000)
    assert 0.8 <= count_text(text) / Tokenizer().count(text) <= 1.2


def test_documents_count_within_a_fifth_of_tiktoken() -> None:
    for name in ("docs/design.md", "DECISIONS.md", "pyproject.toml"):
        text = (_ROOT / name).read_text("utf-8")
        assert 0.8 <= count_text(text) / Tokenizer().count(text) <= 1.2, name
