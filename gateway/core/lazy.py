"""A value that is computed when it is first asked for, and then kept in its object.

Like `functools.cached_property`, which in Python 3.11 has one lock for all objects: while a thread computes a
value of one request, the event loop would wait for the value of another. Two threads that ask the same object
at once may compute it twice.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class lazy(Generic[T]):
    """A decorator. The object needs a `__dict__`; it may be frozen."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: object, owner: type) -> T:
        # From the second time on, Python finds the value in the object, and does not come here.
        value = self._compute(instance)
        instance.__dict__[self._compute.__name__] = value
        return value
