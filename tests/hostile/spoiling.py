"""Choices that the odd requests and the odd answers draw alike."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def pick(draw: st.DrawFn, options: Sequence[T]) -> T:
    """Not `sampled_from`, which would show all options in every message."""
    return options[draw(st.integers(0, len(options) - 1))]


def spoil(draw: st.DrawFn, sent: bytearray, added: Sequence[bytes]) -> None:
    """Adds, removes, repeats or changes bytes at one place."""
    at = draw(st.integers(0, len(sent)))
    match draw(st.integers(0, 3)):
        case 0:
            sent[at:at] = pick(draw, added)
        case 1:
            del sent[at : at + pick(draw, (1, 2, 30, 1 << 20))]
        case 2:
            sent[at:at] = sent[at : at + pick(draw, (1, 20, 200))]
        case _:
            sent[at : at + 1] = bytes([draw(st.integers(0, 255))])
