from hypothesis import given
from hypothesis import strategies as st

from gateway.store.frame import read_frame, render_frame

_KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


@given(_KEYS, st.binary())
def test_a_whole_record_gives_its_payload(key: str, payload: bytes) -> None:
    assert read_frame(key, render_frame(key, payload)) == payload


@given(_KEYS, st.binary(), st.data())
def test_a_torn_or_altered_record_is_none(key: str, payload: bytes, data: st.DataObject) -> None:
    record = render_frame(key, payload)
    cut = data.draw(st.integers(0, len(record) - 1))
    flipped = bytes([record[cut] ^ data.draw(st.integers(1, 255))])
    assert read_frame(key, record[:cut]) is None
    assert read_frame(key, record[:cut] + flipped + record[cut + 1 :]) is None
    assert read_frame(key, record + b"\0") is None


@given(_KEYS, st.binary())
def test_a_record_under_another_key_is_none(key: str, payload: bytes) -> None:
    assert read_frame(key + "x", render_frame(key, payload)) is None
    assert read_frame(key, render_frame(key + "x", payload)) is None
