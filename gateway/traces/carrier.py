"""The headers that carry a trace from one program to the next: W3C Trace Context."""

from collections.abc import Iterable, Mapping
from typing import Final

from multidict import CIMultiDictProxy

FIELDS: Final = ("traceparent", "tracestate")

# Values of these headers; None for one that must not be sent.
Carried = Mapping[str, str | None]


def find_carried(headers: CIMultiDictProxy[str]) -> Mapping[str, str]:
    """Those of a request. A list in several lines is joined."""
    found = {name: ",".join(headers.getall(name, ())) for name in FIELDS}
    return {name: value for name, value in found.items() if value}


def with_carried(headers: Iterable[tuple[str, str]], carried: Carried) -> list[tuple[str, str]]:
    """Headers that continue another span than before."""
    kept = [pair for pair in headers if pair[0].lower() not in FIELDS]
    return kept + [(name, value) for name, value in carried.items() if value is not None]
