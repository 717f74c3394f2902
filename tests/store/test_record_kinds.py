"""Every kind of record is loaded as it was stored, by its owner alone, whole or not at all."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.compaction.manual import Compacted
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.cleared_results import ResultHashes, ResultHashesRecord
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Mark, Pivot
from gateway.core.history.trimmed import HistoryEnd
from gateway.core.limits.learned import Learned
from gateway.core.limits.model_limits import Limits
from gateway.core.sizing.estimate import Calibration
from gateway.state.records import VERSION, Marker, parse_record, render_record

_HEAD = Head(
    owner="t",
    key="ab",
    length=3,
    scope="s",
    tools="",
    prompt_tokens=10,
    output_tokens=2,
    growth_tokens=1.5,
    pivot="cd",
    batches=("ef", "01"),
    conversation="c",
    parent=None,
)


_HEAD_WITH_LEDGER = replace(_HEAD, ledger=BranchLedger(answered_seconds=1.5, has_cached=True))


_PIVOT = Pivot(
    owner="t",
    key="ab",
    covers=3,
    opening_end=1,
    summary='é "]}" \u2028 😀\n',
    question=None,
    resume="Continue",
    tokens=10,
    opening_chars=None,
    opening_tokens=2,
    saved_tokens=7,
    created_seconds=1.25,
)


_BATCH = Batch(
    owner="t", key="ab", length=3, placeholder="[…]", marks=(Mark(1), Mark(2, 256)), saved_tokens=5
)


_MARKER = Marker(owner="t", key="ab", length=3, auto=True, reason="overflow", created_seconds=0.0)


_LEARNED = Learned(owner="t", proven=Limits(context=8_000, input=7_000), created_seconds=1.5, suspected=9_000)


_RESULT_HASHES = ResultHashesRecord(
    owner="t", key="ab", covers=3, outlines=(ResultHashes(pivot="cd", conversation="c", results="ef01"),)
)


_HISTORY_END = HistoryEnd(
    owner="t",
    key="ab",
    length=5,
    opening="",
    fingerprints="cd",
    sizes=(3, 4),
    shapes=("u:", "t0f:12"),
    links="ef",
    is_cut=True,
)


_RECORDS = [
    _HEAD,
    _PIVOT,
    _BATCH,
    _MARKER,
    _LEARNED,
    _RESULT_HASHES,
    _HISTORY_END,
    Calibration(1.25, 7, (1.25, 0.8)),
    _HEAD_WITH_LEDGER,
    Compacted(3, 2_000, 900),
]


_KINDS: list[type] = [Head, Pivot, Batch, Marker, Learned, ResultHashesRecord, Calibration, Compacted]


def edited(record: object, **changes: Any) -> bytes:
    """A rendered record with fields of the record replaced or added."""
    written = json.loads(render_record("t", record))
    written["record"] |= changes
    return json.dumps(written).encode()


@pytest.mark.parametrize("record", _RECORDS)
def test_what_is_written_is_read_back(record: Any) -> None:
    assert parse_record(type(record), "t", render_record("t", record)) == record


@pytest.mark.parametrize("record", _RECORDS)
def test_the_record_of_another_owner_is_none(record: Any) -> None:
    assert parse_record(type(record), "u", render_record("t", record)) is None


@pytest.mark.parametrize("version", [0, VERSION + 1, None, "1"])
def test_a_record_of_another_version_is_none(version: object) -> None:
    written = json.loads(render_record("t", _PIVOT)) | {"version": version}
    assert parse_record(Pivot, "t", json.dumps(written).encode()) is None


@pytest.mark.parametrize(
    ("record", "changes"),
    [
        (_PIVOT, {"covers": "3"}),
        (_PIVOT, {"covers": 3.5}),
        (_PIVOT, {"covers": True}),
        (_PIVOT, {"covers": None}),
        (_PIVOT, {"summary": 7}),
        (_PIVOT, {"summary": None}),
        (_BATCH, {"marks": None}),
        (_BATCH, {"marks": [7]}),
        (_HEAD, {"batches": "ef"}),
        (_HEAD, {"growth_tokens": "1"}),
        (_MARKER, {"auto": 1}),
        (_LEARNED, {"proven": {"context": True}}),
        (_LEARNED, {"proven": {"context": 8_000, "window": 8_000}}),
        (_LEARNED, {"created_seconds": None}),
        (_RESULT_HASHES, {"key": "g0"}),
        (_RESULT_HASHES, {"outlines": [{"pivot": "g0", "conversation": "c", "results": "ef01"}]}),
        (_RESULT_HASHES, {"outlines": [{"pivot": "cd", "conversation": "c", "results": "ef0"}]}),
        (
            _RESULT_HASHES,
            {"outlines": [{"pivot": "cd", "conversation": "c", "results": "ef01", "surprise": 1}]},
        ),
        (Calibration(), {"ratio": None}),
        (Calibration(), {"recent": ["1"]}),
    ],
)
def test_a_record_whose_fields_do_not_fit_is_none(record: Any, changes: dict[str, object]) -> None:
    assert parse_record(type(record), "t", edited(record, **changes)) is None


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"{}",
        b'{"version":1,"owner":"t"}',
        b'{"version":1,"owner":"t","record":null}',
        b'{"version":1,"owner":"t","record":{"ratio":[]}}',
        b'{"version":1,"owner":"t","record":"\xff"}',
        b"\x80\x04K\x01.",
        b"[" * 100_000,
        b'{"version":1,"owner":"t","record":' + b"[" * 100_000,
    ],
)
def test_garbage_is_none(kind: type, data: bytes) -> None:
    assert parse_record(kind, "t", data) is None


@given(st.sampled_from(_RECORDS), st.data())
def test_a_record_that_lost_its_end_or_a_byte_is_never_half_read(record: Any, data: st.DataObject) -> None:
    whole = render_record("t", record)
    at = data.draw(st.integers(0, len(whole) - 1))
    assert parse_record(type(record), "t", whole[:at]) is None
    flipped = whole[:at] + data.draw(st.binary(min_size=1, max_size=1)) + whole[at + 1 :]
    found = parse_record(type(record), "t", flipped)
    assert found is None or isinstance(found, type(record))


@given(st.sampled_from(_RECORDS), st.sampled_from(_KINDS))
def test_a_record_of_one_kind_is_none_of_another(record: Any, kind: type) -> None:
    found = parse_record(kind, "t", render_record("t", record))
    assert (found is not None) == (kind is type(record))
