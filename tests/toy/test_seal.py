"""Sealed texts come back unchanged or are refused."""

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.toy.seal import Sealed, seal, sign, unseal


@given(st.text(), st.text())
def test_a_seal_can_be_opened(text: str, follower: str) -> None:
    assert unseal(seal(Sealed(text, follower))) == Sealed(text, follower)


@given(st.text(), st.data())
def test_a_changed_seal_is_not_opened(text: str, data: st.DataObject) -> None:
    sealed = seal(Sealed(text))
    place = data.draw(st.integers(0, len(sealed) - 1))
    changed = sealed[:place] + data.draw(st.characters()) + sealed[place + 1 :]
    # The last characters of base64 have unused bits.
    assume(changed.rstrip("=")[:-1] != sealed.rstrip("=")[:-1])
    assert unseal(changed) is None


@given(st.text())
def test_other_text_is_not_taken_for_a_seal(text: str) -> None:
    assert unseal(text) is None


@given(st.text(), st.text())
def test_a_signature_is_of_one_text(text: str, other: str) -> None:
    assert (sign(text) == sign(other)) == (text == other)
