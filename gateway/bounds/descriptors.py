"""How many file descriptors this process may open, and how many of them clients may have.

Each request needs two: one for its client and one for its upstream. Some stay free for the admin port, the
store and calls of the gateway's own.
"""

import logging
import resource
from typing import Final

log = logging.getLogger("gateway.connections")

_RESERVED: Final = 128
# Systems without a limit refuse this number or a larger one (macOS: OPEN_MAX).
_MOST: Final = 10_240


def raise_limit() -> None:
    """Raises the soft limit to the hard one, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of file descriptors stays at %d: %s", soft, error)


def count_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else soft


def find_most_connections(descriptors: int) -> int:
    """How many clients may be connected, so that each of them can have an upstream connection, too."""
    return max(1, (descriptors - _RESERVED) // 2)


def find_fence(descriptors: int) -> int:
    """The number of the first descriptor that no client gets: new descriptors have the lowest free number."""
    return descriptors - min(_RESERVED, descriptors // 2) // 2
