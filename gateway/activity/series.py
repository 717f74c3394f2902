"""The newest requests of one conversation as points of a chart. Older ones are only in its sums.

A point takes 40 bytes, because each of hundreds of conversations keeps hundreds of them.
"""

import sys
from array import array
from collections.abc import Sequence
from typing import Final, Literal, get_args

import msgspec

from gateway.core.compaction.plan import PlanName

# Why the array that was sent is not the one before with something added at its end. `history`: the client
# changed it, or what is sent with it.
PrefixChange = Literal["compaction", "pruning", "edit", "history"]

# At least so many points are kept. The oldest ones leave together.
KEPT_POINTS: Final = 500
_DROPPED_POINTS: Final = 50

_PLANS: Final[tuple[PlanName, ...]] = get_args(PlanName)
_CHANGES: Final[tuple[PrefixChange | None, ...]] = (None, *get_args(PrefixChange))
_PLAN_CODES: Final = {name: code for code, name in enumerate(_PLANS)}
_CHANGE_CODES: Final = {name: code << 4 for code, name in enumerate(_CHANGES)}
# Time in hundredths of a second, messages, received, sent, prompt, cached, output, soft, hard, codes.
_COLUMNS: Final = 10
_TICKS: Final = 100
_LARGEST: Final = 2**31 - 1
_NONE: Final = -1


class RequestPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One answered request. All sizes in tokens."""

    at_seconds: float
    # The length of the history.
    messages: int
    # Estimates: of what came, without what was cut out of the client's messages, and of what was sent.
    received: int
    sent: int
    # As the upstream reported them; None if it did not.
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    plan: PlanName = "passthrough"
    # The thresholds; 0 if no window is known.
    soft: int = 0
    hard: int = 0
    change: PrefixChange | None = None


class PointSeries:
    """start_seconds: the time that the points are counted from, of the first request."""

    __slots__ = ("_numbers", "start_seconds")

    def __init__(self, start_seconds: float, points: Sequence[RequestPoint] = ()) -> None:
        self.start_seconds = start_seconds
        self._numbers = array("i")
        for point in points:
            self.append(point)

    def __len__(self) -> int:
        """How many points are kept."""
        return len(self._numbers) // _COLUMNS

    @property
    def weight_bytes(self) -> int:
        return len(self._numbers) * self._numbers.itemsize

    def append(self, point: RequestPoint) -> None:
        prompt, cached, output = point.prompt_tokens, point.cached_tokens, point.output_tokens
        row = (
            round((point.at_seconds - self.start_seconds) * _TICKS),
            point.messages,
            point.received,
            point.sent,
            _NONE if prompt is None else prompt,
            _NONE if cached is None else cached,
            _NONE if output is None else output,
            point.soft,
            point.hard,
            _PLAN_CODES[point.plan] | _CHANGE_CODES[point.change],
        )
        numbers = self._numbers
        size = len(numbers)
        try:
            numbers.extend(row)
        except OverflowError:
            # An upstream may report any number.
            del numbers[size:]
            numbers.extend([max(-_LARGEST, min(number, _LARGEST)) for number in row])
        if size >= (KEPT_POINTS + _DROPPED_POINTS - 1) * _COLUMNS:
            del numbers[: _DROPPED_POINTS * _COLUMNS]

    def list_points(self, newest: int | None = None) -> list[RequestPoint]:
        """The oldest first. newest: only so many of the last ones."""
        count = len(self)
        first = 0 if newest is None else max(0, count - newest)
        return [self._make_point(number) for number in range(first, count)]

    def find_newest(self) -> RequestPoint | None:
        count = len(self)
        return self._make_point(count - 1) if count else None

    def pack(self) -> bytes:
        """The points as 32-bit integers, the least significant byte first."""
        return _with_byte_order(self._numbers).tobytes()

    @classmethod
    def unpack(cls, start_seconds: float, data: bytes) -> "PointSeries":
        """Raises ValueError if these are no packed points."""
        series = cls(start_seconds)
        series._numbers.frombytes(data)
        series._numbers = _with_byte_order(series._numbers)
        if len(series._numbers) % _COLUMNS or any(
            codes & 15 >= len(_PLANS) or not 0 <= codes >> 4 < len(_CHANGES)
            for codes in series._numbers[_COLUMNS - 1 :: _COLUMNS]
        ):
            raise ValueError("not the points of a series")
        return series

    def _make_point(self, number: int) -> RequestPoint:
        row = self._numbers[number * _COLUMNS : (number + 1) * _COLUMNS]
        codes = row[9]
        return RequestPoint(
            at_seconds=self.start_seconds + row[0] / _TICKS,
            messages=row[1],
            received=row[2],
            sent=row[3],
            prompt_tokens=row[4] if row[4] >= 0 else None,
            cached_tokens=row[5] if row[5] >= 0 else None,
            output_tokens=row[6] if row[6] >= 0 else None,
            plan=_PLANS[codes & 15],
            soft=row[7],
            hard=row[8],
            change=_CHANGES[codes >> 4],
        )


def _with_byte_order(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers
