"""Counts are those of OpenAI's tokenizer, and every text has one."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.planning.tokenizer import Tokenizer, count_by_length, count_by_length_up

_TOKENIZER = Tokenizer()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("hello world", 2),
        ("tiktoken is great!", 6),
        ("2 + 2 = 4", 7),
        ("お誕生日おめでとう", 8),
        ("<|endoftext|>", 7),
    ],
)
def test_counts_are_those_of_o200k_base(text: str, tokens: int) -> None:
    assert _TOKENIZER.count(text) == tokens


@given(st.text(st.characters()))
def test_any_text_has_a_count_that_is_not_above_its_bytes(text: str) -> None:
    assert 0 <= _TOKENIZER.count(text) <= len(text.encode("utf-8", "surrogatepass"))


@given(st.text(st.characters(categories=["Cs"]), min_size=1))
def test_lone_surrogates_have_a_count(text: str) -> None:
    assert _TOKENIZER.count(text) > 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", [" ", "\n ", "a", "A", "漢", "!", "\u0301", "\ud800", "\0", "1", "'S"])
def test_a_million_equal_characters_are_counted(unit: str) -> None:
    assert 0 < _TOKENIZER.count(unit * (1_000_000 // len(unit))) <= 1_000_000


def test_a_long_text_counts_about_as_much_as_its_parts() -> None:
    line = "The quick brown fox jumps over the lazy dog.\n"
    assert _TOKENIZER.count(line * 10_000) == pytest.approx(10_000 * _TOKENIZER.count(line), rel=0.001)


def test_many_threads_share_one_tokenizer_from_its_first_use() -> None:
    tokenizer = Tokenizer()
    texts = [f"thread number {n} says hello" * n for n in range(1, 33)]
    with ThreadPoolExecutor(8) as pool:
        counts = list(pool.map(tokenizer.count, texts))
    assert counts == [_TOKENIZER.count(text) for text in texts]


@pytest.mark.parametrize(
    ("length", "tokens"), [(0, 0), (1, 0), (2, 1), (5, 1), (6, 2), (10, 3), (160_000, 40_000)]
)
def test_the_count_by_length_rounds_like_javascript(length: int, tokens: int) -> None:
    assert count_by_length("x" * length) == tokens


def test_loading_needs_no_network() -> None:
    program = """
import sys
from gateway.planning.tokenizer import Tokenizer

def refuse(event, _):
    assert not event.startswith("socket."), event

sys.addaudithook(refuse)
print(Tokenizer().count("hello world"))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == ("2\n", "")


@pytest.mark.system(19)
@pytest.mark.parametrize(
    ("length", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2), (200_000, 50_000), (200_001, 50_001)]
)
def test_the_other_count_by_length_rounds_up(length: int, tokens: int) -> None:
    assert count_by_length_up("x" * length) == tokens
