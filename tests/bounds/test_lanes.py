"""Heavy work leaves the event loop."""

import threading

import pytest

from gateway.bounds.lanes import Lanes


async def test_work_is_done_in_another_thread_and_its_result_comes_back() -> None:
    lanes = Lanes()
    assert await lanes.run("tenant", 1, threading.get_ident) != threading.get_ident()
    lanes.close()


async def test_an_exception_of_the_work_reaches_its_caller() -> None:
    lanes = Lanes()
    with pytest.raises(ValueError, match="invalid literal"):
        await lanes.run("tenant", 1, int, "x")
    lanes.close()
