import pytest

from gateway.core.sizing.attachments import ATTACHMENT_TOKENS
from gateway.wire.attachments import iter_words, measure_parts

_BASE64 = "QUJD" * 256


def test_attachments_have_a_fixed_size_and_other_parts_count_by_their_words() -> None:
    parts: list[dict[str, object]] = [
        {"type": "photo", "data": _BASE64},
        {"type": "new", "a": "x"},
        {"type": ["odd"]},
    ]
    assert measure_parts(parts, {"photo": "image"}) == (ATTACHMENT_TOKENS["image"], ["new", "x", "odd"])


def test_words_are_the_strings_in_their_order_without_keys_and_numbers() -> None:
    assert list(iter_words({"a": ["x", {"b": "y"}, 7, None, True], "c": "z"})) == ["x", "y", "z"]


@pytest.mark.parametrize("text", ["data:image/png;base64,QQ==", _BASE64, _BASE64 + "\n" + _BASE64])
def test_base64_is_not_a_word(text: str) -> None:
    assert list(iter_words([text])) == []


@pytest.mark.parametrize("text", ["word " * 1_000, "x" * 1_023, "漢" * 2_000, ""])
def test_long_texts_and_long_words_are_words(text: str) -> None:
    assert list(iter_words(text)) == [text]


def test_deep_values_do_not_exhaust_the_stack() -> None:
    value: object = "x"
    for _ in range(100_000):
        value = [value]
    assert list(iter_words(value)) == ["x"]
