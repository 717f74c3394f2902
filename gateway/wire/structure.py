"""How much structure a JSON text holds, found without parsing it: its values, and how deep they are nested.

A few megabytes of `{},{},{}` make millions of objects. Parsing them would take seconds and gigabytes, so they
are counted first. Nearly all texts pass by a count of their commas and brackets alone.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from gateway.core.errors import BeyondBounds

# So many quotes, and so many brackets, are within the bound of values: two strings for each value, and one
# array or object inside each other. They are bounded, too, as each string becomes an object here.
_MARKS_PER_VALUE: Final = 4
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
# By how much each byte changes the depth.
_STEPS: Final = [(byte in b"[{") - (byte in b"]}") for byte in range(256)]


@dataclass(frozen=True, kw_only=True, slots=True)
class BodyBounds:
    """What a body may hold. A body beyond one of these passes unread."""

    # Messages, or items of the input.
    messages: int
    # Fields of the outermost object.
    fields: int
    # Values in what is new in a request, counted by their commas.
    values: int
    # Arrays and objects inside each other.
    depth: int


# For bodies that have been checked before, and for those that the gateway makes. No body has a terabyte.
_ANY: Final = 1 << 40
UNBOUNDED: Final = BodyBounds(messages=_ANY, fields=_ANY, values=_ANY, depth=_ANY)


def check_values(data: bytes, bounds: BodyBounds, start: int = 0, end: int | None = None) -> None:
    """Raises BeyondBounds if `data[start:end]` has more commas outside of strings than the bound.

    The data may be invalid JSON, which is found out later.
    """
    end = len(data) if end is None else end
    if data.count(b",", start, end) <= bounds.values:
        return
    if _find_outline(data[start:end], bounds).count(b",") > bounds.values:
        raise _too_many(bounds)


def check_depth(raw: bytes, bounds: BodyBounds) -> None:
    """Raises BeyondBounds for arrays and objects that are nested more deeply than the bound."""
    if raw.count(b"[") + raw.count(b"{") <= bounds.depth:
        return
    brackets = _find_outline(raw, bounds).translate(None, _NO_BRACKETS)
    if len(brackets) > _MARKS_PER_VALUE * bounds.values:
        raise _too_many(bounds)
    if max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > bounds.depth:
        raise BeyondBounds(f"values nested more than {bounds.depth} deep")


def _find_outline(raw: bytes, bounds: BodyBounds) -> bytes:
    """The text outside of strings."""
    # Without escapes a quote always begins or ends a string.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > _MARKS_PER_VALUE * bounds.values:
        raise _too_many(bounds)
    return b"".join(plain.split(b'"')[::2])


def _too_many(bounds: BodyBounds) -> BeyondBounds:
    return BeyondBounds(f"more than {bounds.values} values")
