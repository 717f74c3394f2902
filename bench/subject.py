"""The processes: upstream, bare pass-through and gateway, each on its own port, and what they use.

Linux only: CPU time and memory come from /proc and the process's own CPU clock.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Heads are written two seconds after the response, by a thread that waits half a second more.
_GATEWAY_SETTLE_SECONDS: Final = 2.8
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 15.0
# bench-wide is never full. The other windows are so small that the histories exceed the hard threshold.
_SETTINGS: Final = """
store: "disk:{folder}/store"
upstreams:
  default: {{base_url: "http://127.0.0.1:{port}/v1", formats: [chat]}}
models:
  - {{match: "bench-wide", context: 2000000}}
  - {{match: "bench-small", context: 8000}}
  - {{match: "bench-medium", context: 24000}}
  - {{match: "bench-large", context: 96000}}
{models}
{more}
"""


@dataclass(frozen=True)
class Subject:
    """A running process. CPU in seconds, memory in bytes."""

    name: str
    port: int
    process: "subprocess.Popen[bytes]"
    # How long it still works after its last response. That work counts, too.
    settle_seconds: float = 0.0

    def read_cpu_seconds(self) -> float:
        """User and system time of all its threads: the CPU clock of a process, see clock_getcpuclockid(3)."""
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def read_rss_bytes(self) -> int:
        return read_rss_bytes(self.process.pid)


def read_rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def read_peak_rss_bytes(pid: int) -> int:
    """The most that the process ever used."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


@contextmanager
def running_stub() -> Iterator[Subject]:
    port = _find_port()
    with _running("stub", port, ["-m", "bench.stub", str(port)], cpus=_other_cpus()) as subject:
        yield subject


@contextmanager
def running_bare(stub: Subject) -> Iterator[Subject]:
    port = _find_port()
    arguments = ["-m", "bench.bare", str(port), f"http://127.0.0.1:{stub.port}"]
    with _running("bare", port, arguments, cpus=_subject_cpus()) as subject:
        yield subject


@contextmanager
def running_gateway(stub: Subject, folder: Path, more: str = "", *, models: str = "") -> Iterator[Subject]:
    """more: further settings as YAML; models: further items of `models`. Its store is in `folder`."""
    port = _find_port()
    settings = folder / "gateway.yaml"
    settings.write_text(_SETTINGS.format(folder=folder, port=stub.port, more=more, models=models))
    arguments = ["-m", "gateway", "serve", "--config", str(settings), "--port", str(port)]
    with _running("gateway", port, arguments, cpus=_subject_cpus()) as subject:
        yield subject


def pin_load() -> None:
    """The load shares its core with the upstream. The measured process has the other core."""
    os.sched_setaffinity(0, _other_cpus())


@contextmanager
def _running(name: str, port: int, arguments: Sequence[str], cpus: set[int]) -> Iterator[Subject]:
    process = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(process.pid, cpus)
        _wait_for(name, port, process)
        yield Subject(name, port, process, _GATEWAY_SETTLE_SECONDS if name == "gateway" else 0.05)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(name: str, port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"bench: {name} ended with status {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"bench: {name} does not listen")


def _find_port() -> int:
    """A free port below those for outgoing connections, because the load opens many of these."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def _subject_cpus() -> set[int]:
    return {max(os.sched_getaffinity(os.getppid()) | os.sched_getaffinity(0))}


def _other_cpus() -> set[int]:
    """All cores but that of the measured process; the same core if it is the only one."""
    cpus = os.sched_getaffinity(os.getppid()) | os.sched_getaffinity(0)
    return cpus - {max(cpus)} or cpus
