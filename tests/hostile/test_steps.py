"""The measure that the tests of this folder use tells linear from quadratic."""

from tests.hostile.steps import count_steps


def _count_quadratic(size: int) -> int:
    return count_steps(lambda: sum(1 for one in range(size) for other in range(size) if one == other))


def _count_linear(size: int) -> int:
    return count_steps(lambda: sum(number * number for number in range(size)))


def test_a_quadratic_function_takes_four_times_the_steps_for_twice_the_input() -> None:
    assert 3.5 < _count_quadratic(100) / _count_quadratic(50) < 4.5


def test_a_linear_function_takes_twice_the_steps_for_twice_the_input() -> None:
    assert 1.8 < _count_linear(100) / _count_linear(50) < 2.2
