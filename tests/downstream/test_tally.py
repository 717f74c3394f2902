"""Workers know from shared memory which of them has fewest connections."""

import os
from collections.abc import Iterator

import pytest

from gateway.downstream.tally import Tally


@pytest.fixture
def tally() -> Iterator[Tally]:
    made = Tally.create(3)
    yield made
    made.close()


def test_the_worker_with_fewest_connections_has_least(tally: Tally) -> None:
    tally.write(0, 2)
    tally.write(1, 1)
    tally.write(2, 1)
    assert [tally.has_least(worker) for worker in range(3)] == [False, True, True]


def test_a_worker_that_is_absent_has_never_least(tally: Tally) -> None:
    tally.write(0, 5)
    assert [tally.has_least(worker) for worker in range(3)] == [True, False, False]
    tally.write(1, 1)
    tally.leave(1)
    assert tally.has_least(0)


def test_another_holder_of_the_descriptor_sees_the_same_numbers(tally: Tally) -> None:
    other = Tally(os.dup(tally.descriptor))
    tally.write(0, 4)
    other.write(1, 3)
    assert not tally.has_least(0)
    assert tally.has_least(1)
    other.close()
