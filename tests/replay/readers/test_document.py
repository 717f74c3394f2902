"""Files as JSON objects."""

import pytest

from gateway.replay.errors import NotARecording
from gateway.replay.readers.document import (
    find_fields,
    find_list,
    find_object,
    find_text,
    find_value,
    parse_file,
)


def test_one_object_an_array_and_lines_are_told_apart() -> None:
    only = parse_file(b' {"a": 1} ').only
    assert only is not None
    assert find_value(only, "a") == 1
    array = parse_file(b'[{"a": 1}, {"a": 2}, 3]')
    assert (len(array.objects), array.is_lines, array.skipped) == (2, False, 1)
    lines = parse_file(b'{"a": 1}\n\n{"a": 2}\n')
    assert (len(lines.objects), lines.is_lines, lines.skipped) == (2, True, 0)
    assert lines.only is None


@pytest.mark.parametrize("damage", [b'{"a": 1', b"\xff\xfe", b"null", b'{"a": nul}', b"[1]"])
def test_a_damaged_line_is_skipped_and_counted(damage: bytes) -> None:
    document = parse_file(b'{"a": 1}\n' + damage + b'\n{"a": 2}\n')
    assert [find_value(fields, "a") for fields in document.objects] == [1, 2]
    assert document.skipped == 1


@pytest.mark.parametrize("data", [b"", b"hello", b"[]", b"\x00\x01", b"[" * 100_000])
def test_what_holds_no_object_is_no_recording(data: bytes) -> None:
    with pytest.raises(NotARecording, match="no JSON object"):
        parse_file(data)


def test_values_are_found_or_none_and_never_raise() -> None:
    fields = find_fields(b'{"text": "x", "object": {"a": 1}, "list": [1, 2], "half": "\\ud83d"}')
    assert fields is not None
    assert find_text(fields, "text") == "x"
    assert find_text(fields, "list") is None
    assert [*(find_object(fields, "object") or {})] == ["a"]
    assert find_object(fields, "text") is None
    assert [bytes(raw) for raw in find_list(fields["list"]) or ()] == [b"1", b"2"]
    assert find_list(fields["text"]) is None
    assert isinstance(find_text(fields, "half"), str)
    assert find_value(fields, "missing") is None
