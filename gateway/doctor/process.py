"""What this machine gives a process: file descriptors and cores."""

import os
import resource
from collections.abc import Iterator
from typing import Final

from gateway.bounds.process import find_most_connections
from gateway.doctor.finding import Diagnosis, note_ok, warn
from gateway.settings import Settings

_SUBJECT: Final = "process"
# Beside two for each connection.
_OTHERS: Final = 256


def examine_process(settings: Settings) -> Iterator[Diagnosis]:
    """The gateway raises the soft limit to the hard one, so the hard one counts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.bounds.connections
    most = wanted if hard == resource.RLIM_INFINITY else find_most_connections(hard)
    if most < wanted:
        needed = 2 * wanted + _OTHERS
        what = f"{hard:,} file descriptors allow {most:,} connections, and bounds.connections is {wanted:,}"
        yield warn(_SUBJECT, what, f"ulimit -Hn {needed}  # in systemd: LimitNOFILE={needed}")
    else:
        yield note_ok(_SUBJECT, f"file descriptors suffice for {wanted:,} connections")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield note_ok(_SUBJECT, f"cores: {cores}; one process uses one of them, see refold serve --workers N")
