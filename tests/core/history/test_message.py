from hypothesis import given
from hypothesis import strategies as st

from gateway.core.history.message import fingerprint_fields, hash_beginning

_FIELDS = st.lists(
    st.tuples(st.sampled_from([b"role", b"text", b"call"]), st.text("a:1", max_size=4).map(str.encode))
)


@given(_FIELDS, _FIELDS)
def test_different_lists_of_fields_have_different_fingerprints(
    one: list[tuple[bytes, bytes]], other: list[tuple[bytes, bytes]]
) -> None:
    assert (fingerprint_fields(one) == fingerprint_fields(other)) == (one == other)


def test_a_value_cannot_imitate_another_field() -> None:
    assert fingerprint_fields([(b"text", b"a"), (b"text", b"b")]) != fingerprint_fields(
        [(b"text", b"atext:1:b")]
    )


def test_a_text_that_was_cut_begins_alike() -> None:
    text = "A long text. " * 10
    assert hash_beginning(text[:80] + "[...]") == hash_beginning(text)
    assert hash_beginning(text[:20] + "[...]") != hash_beginning(text)
    assert hash_beginning("  ") == hash_beginning("") == b""
