"""Renders records for the store as JSON, and parses them back.

pydantic checks every field on the way in. A record that does not fit its type counts as absent.
"""

import re
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from gateway.core.compaction.manual import Compacted
from gateway.core.history.branch_ledger import BranchLedger
from gateway.core.history.cleared_results import ResultHashesRecord
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.history.recall import Recall
from gateway.core.history.trimmed import HistoryEnd
from gateway.core.history.versions import VersionsRecord
from gateway.core.limits.learned import Learned
from gateway.core.sizing.estimate import Calibration

R = TypeVar("R")

VERSION: Final = 1
_HEX: Final = re.compile(r"(?:[0-9a-f]{2})+")


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A compaction that is due. It is saved before the work begins and deleted when the work is done.

    key: chain of the request after whose response it was decided. auto: false if a person asked for it.
    instructions: what that person wants kept in mind.
    """

    owner: str
    key: str
    length: int
    auto: bool
    reason: str
    created_seconds: float
    instructions: str = ""


@dataclass(frozen=True, kw_only=True)
class FailedCompaction:
    """A compaction that came to nothing. lease, fence: of the process that made it."""

    owner: str
    lease: str
    fence: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class OwnedName:
    """A response, or an item of one, that the upstream stores for this tenant. key: a hash of its name."""

    owner: str
    key: str


@dataclass(frozen=True, kw_only=True)
class NamedRecord:
    """A response that later requests may name, with what its request added, or a single item of a response.

    key: a hash of its name. previous: the name of the response before it. own: the body that the request
    added. items: of the response, or the single item. Both are base64 of JSON. sent, earlier: see
    NamedTurn.
    """

    owner: str
    key: str
    previous: str | None = None
    sent: str = ""
    own: str = ""
    items: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()


_adapters: Final[dict[type, TypeAdapter[Any]]] = {
    kind: TypeAdapter(kind)
    for kind in (
        *(Head, Pivot, Batch, Recall, ResultHashesRecord, Marker, HistoryEnd, FailedCompaction),
        *(Calibration, Learned, Compacted, OwnedName, NamedRecord, VersionsRecord),
    )
}
# Fields that say nothing about what a record stands for. They are written beside it, where earlier versions
# do not look, and count as absent if they cannot be read.
_HINTS: Final[dict[type, dict[str, TypeAdapter[Any]]]] = {
    Pivot: {"is_early": TypeAdapter(bool)},
    Head: {"ledger": TypeAdapter(BranchLedger)},
}
# Fields that were added in November 2026, and what they say in the records of before.
_LATER_FIELDS: Final[dict[type, dict[str, object]]] = {
    Pivot: {"version": 1, "edited_seconds": None, "origin": None},
    Head: {"pivot_version": 1, "recalls": ()},
}
_FIELDS: Final = {
    kind: [field.name for field in fields(kind) if field.name not in hints] for kind, hints in _HINTS.items()
}
_envelope_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def render_record(owner: str, record: object) -> bytes:
    hints = {name: getattr(record, name) for name in _HINTS.get(type(record), ())}
    envelope = {"version": VERSION, "owner": owner, "record": _without_defaults(record)}
    return msgspec.json.encode(envelope | {name: value for name, value in hints.items() if value})


def _without_defaults(record: object) -> object:
    """Without the fields that earlier versions do not know, unless they say something: a record with a field
    that it does not know counts as absent.
    """
    names = _FIELDS.get(type(record))
    if names is None:
        return record
    later = _LATER_FIELDS[type(record)]
    is_plain = all(getattr(record, name) == default for name, default in later.items())
    return {name: getattr(record, name) for name in names if not (is_plain and name in later)}


def parse_record(kind: type[R], owner: str, data: bytes) -> R | None:
    """None if the record is damaged, has another version, or belongs to another owner."""
    try:
        envelope = _envelope_decoder.decode(data)
        version, its_owner = (msgspec.json.decode(envelope[field]) for field in ("version", "owner"))
        if version != VERSION or its_owner != owner:
            return None
        record: R = _adapters[kind].validate_json(bytes(envelope["record"]), strict=True, extra="forbid")
    except (msgspec.MsgspecError, ValidationError, UnicodeDecodeError, RecursionError, KeyError):
        return None
    if getattr(record, "owner", owner) != owner or not _has_hex_keys(record):
        return None
    for name, adapter in _HINTS.get(kind, {}).items():
        if name in envelope:
            with suppress(ValidationError, RecursionError):
                hint = adapter.validate_json(bytes(envelope[name]), strict=True, extra="forbid")
                record = replace(record, **{name: hint})  # type: ignore[type-var]  # kinds with hints are dataclasses
    return record


def find_owner(data: bytes) -> str | None:
    """The owner that a record names; None if it is damaged."""
    try:
        return msgspec.json.decode(msgspec.json.decode(data, type=dict[str, msgspec.Raw])["owner"], type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
        return None


def _has_hex_keys(record: object) -> bool:
    """Whether all keys and hashes that it names are hexadecimal. They are decoded without another check."""
    named = [getattr(record, "key", None), getattr(record, "pivot", None), getattr(record, "chain", None)]
    named += [*getattr(record, "batches", ()), *getattr(record, "recalls", ())]
    for hashes in getattr(record, "outlines", ()):
        named += [hashes.pivot, hashes.results]
    if isinstance(record, HistoryEnd):
        named += [record.links or None, record.fingerprints or None, record.opening or None]
    return all(_HEX.fullmatch(key) for key in named if key is not None)
