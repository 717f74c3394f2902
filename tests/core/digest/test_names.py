from hypothesis import given
from hypothesis import strategies as st

from gateway.core.digest.facts import find_facts, is_secret
from gateway.core.digest.names import find_names


def test_facts_and_identifiers_are_names() -> None:
    text = "See src/a/parse.py: make_reader calls readAll and FileReader, x_y and ab are too short."
    assert find_names(text) == ("src/a/parse.py", "make_reader", "readAll", "FileReader")


def test_a_key_is_no_name() -> None:
    assert find_names("token sk_live_4f9Xq2LmT8zR1vBn7KdW0aYc and `sk-proj-4f9Xq2LmT8zR1vBn7KdW0aYc`") == ()


@given(st.text() | st.lists(st.sampled_from(["a_b", "aB", "_", "src/x.py", " ", "`", "é"])).map("".join))
def test_each_name_stands_once_and_facts_come_first(text: str) -> None:
    names = find_names(text)
    facts = [fact for fact in find_facts(text) if not is_secret(fact)]
    assert len(names) == len(set(names))
    assert list(names[: len(facts)]) == facts
    assert all(name in text for name in names[len(facts) :])
