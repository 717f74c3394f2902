from hypothesis import given
from hypothesis import strategies as st

from gateway.store.record import parse_record, render_record

_KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


@given(_KEYS, st.binary())
def test_a_whole_record_gives_its_payload(key: str, payload: bytes) -> None:
    assert parse_record(key, render_record(key, payload)) == payload


@given(_KEYS, st.binary(), st.data())
def test_a_torn_or_altered_record_is_none(key: str, payload: bytes, data: st.DataObject) -> None:
    record = render_record(key, payload)
    cut = data.draw(st.integers(0, len(record) - 1))
    flipped = bytes([record[cut] ^ data.draw(st.integers(1, 255))])
    assert parse_record(key, record[:cut]) is None
    assert parse_record(key, record[:cut] + flipped + record[cut + 1 :]) is None
    assert parse_record(key, record + b"\0") is None


@given(_KEYS, st.binary())
def test_a_record_under_another_key_is_none(key: str, payload: bytes) -> None:
    assert parse_record(key + "x", render_record(key, payload)) is None
    assert parse_record(key, render_record(key + "x", payload)) is None
