"""Connections are counted per address and in all, and an unused one makes room."""

import asyncio
import logging

import pytest

from gateway.core.errors import RequestRefused
from gateway.downstream.gate import Gate, PortBounds


class Caller:
    """A connection that the gate sees."""

    def __init__(self, gate: Gate, address: str = "10.0.0.1", descriptor: int = 10) -> None:
        self._gate = gate
        self.gave_way = False
        self.is_unused = True
        self.checks = 0
        self.refusal = gate.admit(self, address, descriptor)

    def check(self, now_seconds: float) -> None:
        self.checks += 1

    def give_way(self) -> None:
        self.gave_way = True
        self._gate.leave(self)


def status(refusal: RequestRefused | None) -> int | None:
    return refusal.status if refusal is not None else None


def test_an_address_has_its_own_bound() -> None:
    gate = Gate(PortBounds(connections=9, connections_per_address=2))
    first, second, third = Caller(gate), Caller(gate), Caller(gate)
    other = Caller(gate, "10.0.0.2")
    assert [status(caller.refusal) for caller in (first, second, third, other)] == [None, None, 503, None]
    assert third.refusal is not None and third.refusal.retry_after_seconds == 1
    gate.leave(third)
    gate.leave(first)
    assert Caller(gate).refusal is None
    assert status(Caller(gate).refusal) == 503


def test_the_number_of_connections_is_told_whenever_it_changes() -> None:
    gate = Gate(PortBounds(connections=2))
    counts: list[int] = []
    gate.report_to(counts.append)
    first, second = Caller(gate), Caller(gate)
    assert status(Caller(gate).refusal) == 503
    gate.leave(first)
    gate.leave(first)
    gate.leave(second)
    assert counts == [0, 1, 2, 1, 0]


def test_beyond_the_bound_in_all_the_longest_unused_connection_goes() -> None:
    gate = Gate(PortBounds(connections=3))
    busy, older, newer = Caller(gate), Caller(gate), Caller(gate)
    for caller in (busy, older, newer):
        gate.rest(caller)
    gate.wake(busy)
    assert Caller(gate).refusal is None
    assert (busy.gave_way, older.gave_way, newer.gave_way) == (False, True, False)
    assert Caller(gate).refusal is None
    assert newer.gave_way
    assert status(Caller(gate).refusal) == 503


def test_of_the_connections_that_wait_only_unused_ones_are_closed() -> None:
    gate = Gate(PortBounds())
    busy, unused, begun = Caller(gate), Caller(gate), Caller(gate)
    begun.is_unused = False
    gate.rest(unused)
    gate.rest(begun)
    gate.close_unused()
    assert [caller.gave_way for caller in (busy, unused, begun)] == [False, True, False]


def test_the_last_descriptors_are_kept() -> None:
    gate = Gate(PortBounds(descriptors=100))
    assert Caller(gate, descriptor=99).refusal is None
    assert status(Caller(gate, descriptor=100).refusal) == 503


def test_refusals_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "gateway.connections")
    gate = Gate(PortBounds(connections_per_address=1))
    for _ in range(5):
        Caller(gate)
    assert caplog.messages == [
        "too many connections: 1 from one address (bounds.connections_per_address); "
        "refused since the last line: 1"
    ]


def test_unfinished_heads_are_bounded_together() -> None:
    gate = Gate(PortBounds(head_bytes=1_000))
    gate.pending_bytes = 64_000
    assert not gate.is_crowded
    gate.pending_bytes += 1
    assert gate.is_crowded


async def test_connections_are_checked_again_and_again() -> None:
    gate = Gate(PortBounds(head_seconds=0.01))
    caller = Caller(gate)
    gate.open()
    while caller.checks < 3:
        await asyncio.sleep(0)
    await gate.close()
