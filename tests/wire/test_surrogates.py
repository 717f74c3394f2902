import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.chat import parse_body, read_message
from gateway.wire.chat_text import read_spoken
from gateway.wire.request import message_key, parse_continuation
from gateway.wire.surrogates import mend_surrogates

_PIECES = st.sampled_from(["\ud83d", "\ude00", "\U0001f600", "\\", '"', "u", "\\ud83d", "\n", "x"])
_TEXTS = st.lists(_PIECES, max_size=12).map("".join) | st.text(st.characters(exclude_categories=()))


@given(_TEXTS)
def test_a_mended_text_has_its_length_and_can_be_read(text: str) -> None:
    raw = json.dumps(text).encode()
    mended = mend_surrogates(raw)
    assert len(mended) == len(raw)
    # json puts halves together where they make a pair.
    assert json.loads(mended) == "".join(map(to_private_use, json.loads(raw)))
    assert mend_surrogates(mended) is mended


def to_private_use(character: str) -> str:
    is_half = "\ud800" <= character <= "\udfff"
    return chr(ord(character) - 0xD800 + 0xE000) if is_half else character


@given(st.text(max_size=40))
def test_a_text_without_halves_is_left_alone(text: str) -> None:
    raw = json.dumps(text).encode()
    assert mend_surrogates(raw) is raw


def test_an_escaped_backslash_is_no_escape() -> None:
    raw = rb'"\\ud83d \\\ud83d \ud83d\ude00 \uD83D\u0041"'
    assert mend_surrogates(raw) == rb'"\\ud83d \\\ue03d \ud83d\ude00 \ue03D\u0041"'


@given(_TEXTS, _TEXTS)
def test_a_body_with_halves_is_understood_and_not_touched(first: str, second: str) -> None:
    messages = [{"role": "user", "content": first}]
    before = parse_body(json.dumps({"model": "m", "messages": messages}).encode())
    messages.append({"role": "tool", "tool_call_id": "a", "content": second})
    data = json.dumps({"model": "m", "messages": messages}).encode()
    body = parse_continuation(before, 1, data)
    assert body.places == parse_body(data).places
    assert body.data is data
    for index, message in enumerate(messages):
        raw = body.raw(index)
        assert json.loads(raw) == json.loads(json.dumps(message))
        facts = read_message(raw, message_key(raw, b"t"))
        assert facts.role == message["role"]
        assert len(read_spoken(raw).text) == len(json.loads(mend_surrogates(raw))["content"])
