import json
import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from gateway.logs.fields import name_fields
from gateway.logs.render import JsonFormatter, make_text_formatter


def make_record(message: str, **fields: str | int) -> logging.LogRecord:
    extra = name_fields(**fields)
    return logging.getLogger("gateway.x").makeRecord(
        "gateway.x", logging.INFO, "f", 1, message, (), None, extra=extra
    )


def test_a_line_of_json_has_the_ids_as_fields() -> None:
    record = make_record("too long", conversation="c1", sent=9)
    record.created = 1_000.25
    assert json.loads(JsonFormatter("worker-2").format(record)) == {
        "time": "1970-01-01T00:16:40.250Z",
        "level": "info",
        "logger": "gateway.x",
        "process": "worker-2",
        "message": "too long",
        "conversation": "c1",
        "sent": 9,
    }


def test_a_line_of_text_has_what_it_always_had() -> None:
    assert (
        make_text_formatter("")
        .format(make_record("hello", conversation="c1"))
        .endswith(" INFO gateway.x hello")
    )
    assert " worker-1 INFO gateway.x " in make_text_formatter("worker-1").format(make_record("hello"))


def test_an_error_is_in_the_same_line() -> None:
    record = make_record("failed")
    try:
        raise ValueError("line one\nline two")
    except ValueError:
        record.exc_info = sys.exc_info()
    line = JsonFormatter("").format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: line one\nline two")


def test_a_field_takes_the_place_of_nothing() -> None:
    read = json.loads(JsonFormatter("").format(make_record("hello", process="other", time="never")))
    assert "process" not in read and read["time"] != "never"


@given(st.text(), st.text())
def test_whatever_a_line_holds_it_is_one_line(message: str, value: str) -> None:
    line = JsonFormatter("").format(make_record(message, name=value))
    assert line.isascii() and line.isprintable()
    read = json.loads(line)
    assert (read["message"], read["name"]) == (message, value)


def test_halves_of_characters_are_no_error() -> None:
    assert json.loads(JsonFormatter("").format(make_record("\ud800")))["message"] == "\ud800"
