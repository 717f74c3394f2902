"""Counts the lines that a call executes, so that a test can tell linear from quadratic without a clock."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_steps(function: Callable[[], object]) -> int:
    """Lines of Python executed by one call, those of generators and comprehensions included.

    What C code does is not seen, such as copying bytes again and again.
    """
    steps = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return steps
