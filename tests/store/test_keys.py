"""Keys of records."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.store.keys import find_tag, make_key, make_tag
from gateway.store.record import check_key


def test_a_key_says_kind_tag_and_name() -> None:
    tag = make_tag("tenant:a")
    assert make_key(tag, "head", "00ff") == f"head:{{{tag}}}00ff"
    assert len(tag) == 32


@given(st.text(), st.text())
def test_owners_have_tags_of_their_own_that_any_store_takes(one: str, other: str) -> None:
    assert (make_tag(one) == make_tag(other)) == (one == other)
    check_key(make_key(make_tag(one), "head", "00"))
    assert find_tag(make_key(make_tag(one), "head", "00")) == make_tag(one)


def test_an_earlier_version_wrote_keys_without_a_tag() -> None:
    assert find_tag("head:00ff") is None
    assert find_tag("head:{00ff}") is None
