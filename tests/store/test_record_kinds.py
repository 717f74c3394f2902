"""Every kind of record is loaded as it was stored, by its owner alone, whole or not at all."""

import json
from dataclasses import fields, is_dataclass, replace
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.manual import Compacted
from gateway.core.history.cleared_results import ResultHashesRecord
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.history.recall import Recall
from gateway.core.history.trimmed import HistoryEnd
from gateway.core.history.versions import VersionsRecord
from gateway.core.limits.learned import Learned
from gateway.core.sizing.estimate import Calibration
from gateway.state.records import (
    FailedCompaction,
    Marker,
    NamedRecord,
    OwnedName,
    parse_record,
    render_record,
)

KINDS: list[Any] = [
    *(Head, Pivot, Batch, Recall, ResultHashesRecord, Marker, HistoryEnd, FailedCompaction),
    *(Calibration, Learned, Compacted, OwnedName, NamedRecord, VersionsRecord),
]
# Keys and hashes are hexadecimal, and what people and models write may be anything.
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.binary(min_size=1, max_size=3).map(bytes.hex),
    float: st.floats(0, 1e12),
    int: st.integers(0, 10**9),
    bool: st.booleans(),
    type(None): st.none(),
}
_WRITTEN = {"summary", "question", "resume", "placeholder", "reason", "instructions", "framing", "recalled"}
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def build(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type; records are those of tenant t."""
    if not is_dataclass(kind):
        inner = [build(each) for each in get_args(kind) if each is not Ellipsis]
        if get_origin(kind) is tuple:
            return st.lists(inner[0], max_size=3).map(tuple)
        return _PLAIN[kind] if kind in _PLAIN else st.one_of(inner)
    own = {name: build(hint) for name, hint in get_type_hints(kind).items()}
    own |= {name: _TEXTS for name in own if name in _WRITTEN}
    own |= {name: st.just("t") for name in own if name == "owner"}
    made: Any = kind
    return st.builds(made, **own)


RECORDS = st.sampled_from(KINDS).flatmap(build)


@given(RECORDS)
def test_a_record_is_loaded_as_it_was_stored_by_its_owner(record: Any) -> None:
    data = render_record("t", record)
    assert parse_record(type(record), "t", data) == record
    assert parse_record(type(record), "u", data) is None
    if hasattr(record, "owner"):
        # Its cover and the record itself have to agree.
        assert parse_record(type(record), "u", render_record("u", record)) is None
        foreign = replace(record, owner="u")
        assert parse_record(type(record), "t", render_record("t", foreign)) is None


@given(RECORDS, st.sampled_from([0, 2, None, "1"]))
def test_a_record_of_another_version_is_none(record: Any, version: object) -> None:
    written = json.loads(render_record("t", record)) | {"version": version}
    assert parse_record(type(record), "t", json.dumps(written).encode()) is None


@given(RECORDS, st.data())
def test_a_record_with_a_field_that_does_not_fit_is_none(record: Any, data: st.DataObject) -> None:
    written = json.loads(render_record("t", record))
    name = data.draw(st.sampled_from([*written["record"], "surprise"]))
    kept = written["record"].get(name)
    wrong: list[object] = [{"surprise": 1}, True if not isinstance(kept, bool) else 1]
    if isinstance(kept, int | float):
        wrong.append(str(kept))
    written["record"][name] = data.draw(st.sampled_from(wrong))
    assert parse_record(type(record), "t", json.dumps(written).encode()) is None


@given(RECORDS, st.data())
def test_a_record_that_lost_its_end_or_a_byte_is_never_half_read(record: Any, data: st.DataObject) -> None:
    whole = render_record("t", record)
    at = data.draw(st.integers(0, len(whole) - 1))
    assert parse_record(type(record), "t", whole[:at]) is None
    flipped = whole[:at] + data.draw(st.binary(min_size=1, max_size=1)) + whole[at + 1 :]
    found = parse_record(type(record), "t", flipped)
    assert found is None or isinstance(found, type(record))


@given(RECORDS, st.sampled_from(KINDS))
def test_a_record_of_one_kind_is_none_of_another(record: Any, kind: Any) -> None:
    names = [{field.name for field in fields(each)} for each in (kind, type(record))]
    if names[0] != names[1]:
        assert parse_record(kind, "t", render_record("t", record)) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"null", b"[]", b"7", b'"text"', b"{}", b"\x80\x04K\x01.", b"[" * 100_000),
        *(b'{"version":1,"owner":"t"}', b'{"version":1,"owner":"t","record":null}'),
        *(
            b'{"version":1,"owner":"t","record":"\xff"}',
            b'{"version":1,"owner":"t","record":' + b"[" * 100_000,
        ),
    ],
    ids=range(12),
)
def test_garbage_is_none(kind: type, data: bytes) -> None:
    assert parse_record(kind, "t", data) is None
