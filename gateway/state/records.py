"""How state is written down, and checked when it is read back.

A record is JSON. pydantic guards the way in: what does not fit its type, or names another owner, is no
record.
"""

import re
from typing import Any, Final, TypeVar

import msgspec
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from gateway.core.compaction.manual import Folded
from gateway.core.history.cleared_results import ResultHashesRecord
from gateway.core.history.head import Head
from gateway.core.history.pivot import Batch, Pivot
from gateway.core.limits.learned import Learned
from gateway.core.sizing.estimate import Calibration

R = TypeVar("R", Head, Pivot, Batch, ResultHashesRecord, "Marker", Calibration, Learned, Folded)

VERSION: Final = 1
_DIGEST: Final = re.compile(r"(?:[0-9a-f]{2})+")


@dataclass(frozen=True, kw_only=True)
class Marker:
    """A compaction that is due: queued, persisted, taken away when it is done (document 000 §4.1).

    key: chain of the request after whose answer it was decided. auto: not asked for by a person.
    instructions: that person's.
    """

    owner: str
    key: str
    length: int
    auto: bool
    reason: str
    created_seconds: float
    instructions: str = ""


_adapters: Final[dict[type, TypeAdapter[Any]]] = {
    kind: TypeAdapter(kind)
    for kind in (Head, Pivot, Batch, ResultHashesRecord, Marker, Calibration, Learned, Folded)
}
_envelope_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def render_record(owner: str, record: object) -> bytes:
    return msgspec.json.encode({"version": VERSION, "owner": owner, "record": record})


def parse_record(kind: type[R], owner: str, data: bytes) -> R | None:
    """The record, or None for one that is not whole, not of this version, or somebody else's."""
    try:
        envelope = _envelope_decoder.decode(data)
        if (
            msgspec.json.decode(envelope["version"]) != VERSION
            or msgspec.json.decode(envelope["owner"]) != owner
        ):
            return None
        record: R = _adapters[kind].validate_json(bytes(envelope["record"]), strict=True, extra="forbid")
    except (msgspec.MsgspecError, ValidationError, UnicodeDecodeError, RecursionError, KeyError):
        return None
    return record if getattr(record, "owner", owner) == owner and _names_chains(record) else None


def _names_chains(record: object) -> bool:
    """Are all the keys and digests that it names in hex?"""
    named = [getattr(record, "key", None), getattr(record, "pivot", None), *getattr(record, "batches", ())]
    for outline in getattr(record, "outlines", ()):
        named += [outline.pivot, outline.results]
    return all(_DIGEST.fullmatch(key) for key in named if key is not None)
