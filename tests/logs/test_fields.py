import logging

from gateway.logs.fields import FIELDS, name_fields


def test_fields_are_on_the_record_without_what_is_not_known() -> None:
    extra = name_fields(conversation="c1", upstream=None, tokens=0)
    record = logging.getLogger("toy").makeRecord("toy", 20, "f", 1, "text", (), None, extra=extra)
    assert vars(record)[FIELDS] == {"conversation": "c1", "tokens": 0}
