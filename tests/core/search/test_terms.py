import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.search.terms import find_indexed_words, find_terms, fold, quote_terms, split_grams


def test_words_are_folded_and_common_ones_left_out() -> None:
    assert find_terms("Where is the Café of PARIS?").words == ("cafe", "paris")


def test_a_query_of_common_words_keeps_them() -> None:
    assert find_terms("what is this").words == ("what", "is", "this")


@pytest.mark.parametrize(
    "name",
    ["gateway/core/search.py", "foo_bar", "a.b.c", "user@host", "C:\\temp\\x", "https://x.y/z", "v1.2-rc3"],
)
def test_names_and_paths_are_phrases_and_their_words_are_looked_for_too(name: str) -> None:
    terms = find_terms(f"look at {name}, please")
    assert terms.phrases == (name,)
    assert len(terms.words) > 2


def test_the_parts_of_camel_case_are_words() -> None:
    assert {"getusername", "get", "user", "name"} <= {*find_terms("getUserName").words}
    assert find_indexed_words("parseHTTPResponse2").extra == ["parse", "http", "response", "2"]


def test_text_without_spaces_is_looked_for_in_pairs() -> None:
    terms = find_terms("错误处理")
    assert terms.words == ("错误", "误处", "处理")
    assert terms.parts == ()
    assert find_indexed_words("a 错误 b").extra == ["错误"]
    assert find_indexed_words("日").extra == ["日"]


def test_an_emoji_is_a_word() -> None:
    assert find_terms("🚀").words == tuple(find_indexed_words("go 🚀!").extra) == ("u1f680",)


@pytest.mark.parametrize("query", ["", "   ", "?!", '"', "\0", "***", "()"])
def test_a_query_without_words_looks_for_nothing(query: str) -> None:
    assert find_terms(query).is_empty


@given(st.text(max_size=200))
def test_any_query_is_only_text_to_sqlite(query: str) -> None:
    terms = find_terms(query)
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
        asked = quote_terms([*terms.words, *terms.phrases, *terms.parts], "OR")
        if asked and not any("\ud800" <= c <= "\udfff" for c in asked):
            connection.execute("SELECT * FROM words WHERE words MATCH ?", (asked,)).fetchall()
    connection.close()


@given(st.text(max_size=20_000))
def test_the_terms_of_a_query_are_bounded(query: str) -> None:
    terms = find_terms(query)
    assert len(terms.words) <= 64 and len(terms.phrases) <= 16 and len(terms.parts) <= 16


def test_both_ends_of_a_long_query_are_read() -> None:
    words = find_terms("begin " + "x " * 10_000 + "finish").words
    assert words == ("begin", "x", "finish")


def test_a_part_of_a_word_is_split_into_three_characters_each() -> None:
    assert split_grams("abcd") == ["abc", "bcd"]
    assert split_grams("aaaa") == ["aaa"]
    assert split_grams("ab") == []


def test_folding_is_that_of_the_index() -> None:
    assert fold("Ünïcode") == "unicode"


@given(st.text(max_size=200))
def test_every_word_of_a_text_is_found_by_a_query_of_it(text: str) -> None:
    words = find_indexed_words(text).words
    assert {word for word in find_terms(text).words if len(find_terms(text).words) < 64} <= words


@pytest.mark.parametrize("hostile", ["a", "aB", "_", "a_", "a.", "_.", "漢"])
def test_long_words_are_read_at_once(hostile: str) -> None:
    """A second for each query would be more than a test may take."""
    query = hostile * (4_000 // len(hostile))
    assert all(len(find_terms(query[at:]).phrases) <= 1 for at in range(300))
