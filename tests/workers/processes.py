"""A gateway of several processes, as a child of the test."""

import re
from pathlib import Path

from tests.hostile.process import ProcessGateway
from tests.toy.running import wait_until

_ADMIN = re.compile(r"^ +admin +http://[^ ]+:(\d+)/", re.MULTILINE)
_READY = re.compile(r"(worker-\d+) is ready \(process (\d+)\)")


def find_workers(gateway: ProcessGateway) -> dict[str, int]:
    """The process of each worker by its name, as the log told last."""
    return {name: int(number) for name, number in _READY.findall(gateway.log)}


def count_starts(gateway: ProcessGateway) -> int:
    """How many workers have been ready since the start, replacements included."""
    return len(_READY.findall(gateway.log))


def find_admin_port(gateway: ProcessGateway) -> int:
    found = _ADMIN.search(gateway.log)
    assert found is not None, gateway.log
    return int(found[1])


def is_alive(process_id: int) -> bool:
    """False also for a process that has ended and is not waited for."""
    return _read_state(process_id) not in ("", "Z")


def is_stopped(process_id: int) -> bool:
    """After SIGSTOP, which takes a moment."""
    return _read_state(process_id) == "T"


def _read_state(process_id: int) -> str:
    """See proc(5). "" if there is no such process."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


async def wait_until_gone(process_ids: list[int], seconds: float = 30.0) -> None:
    await wait_until(lambda: not any(map(is_alive, process_ids)), seconds)
