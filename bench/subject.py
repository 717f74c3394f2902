"""The processes: upstream, bare pass-through, gateway and Redis, each on its own port, and what they use.

Linux only: CPU time and memory come from /proc and the process's own CPU clock.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Heads are written two seconds after the response, by a thread that waits half a second more.
_GATEWAY_SETTLE_SECONDS: Final = 2.8
_OTHERS_SETTLE_SECONDS: Final = 0.05
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 15.0
# bench-wide is never full. The other windows are so small that the histories exceed the hard threshold. All
# models are free, so that sizes alone decide when a history is compacted.
_SETTINGS: Final = """
store: "{store}"
admin: {{port: {admin_port}}}
upstreams:
  default: {{base_url: "http://127.0.0.1:{port}/v1", formats: [chat]}}
models:
  - {{match: "bench-wide", context: 2000000, price: {{input: 0, output: 0}}}}
  - {{match: "bench-small", context: 8000, price: {{input: 0, output: 0}}}}
  - {{match: "bench-medium", context: 24000, price: {{input: 0, output: 0}}}}
  - {{match: "bench-large", context: 96000, price: {{input: 0, output: 0}}}}
{models}
{more}
"""


@dataclass(frozen=True)
class Subject:
    """A running program: one process, or a supervisor and its workers. CPU in seconds, memory in bytes."""

    name: str
    port: int
    process: "subprocess.Popen[bytes]"
    # How long it still works after its last response. That work counts, too.
    settle_seconds: float = 0.0

    def read_cpu_seconds(self) -> float:
        """User and system time of all threads of all its processes."""
        return sum(map(_read_cpu_seconds, self.list_processes()))

    def read_rss_bytes(self) -> int:
        return sum(map(read_rss_bytes, self.list_processes()))

    def list_processes(self) -> list[int]:
        """The process and all that it has started."""
        found = [self.process.pid]
        for pid in found:
            found += _list_children(pid)
        return found


def _read_cpu_seconds(pid: int) -> float:
    """The CPU clock of a process, see clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


def _list_children(pid: int) -> list[int]:
    """A thread has children of its own."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def read_rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def read_peak_rss_bytes(pid: int) -> int:
    """The most that the process ever used."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    peak = next(line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024


@contextmanager
def running_stub(*, cpus: set[int] | None = None) -> Iterator[Subject]:
    """cpus: None for the cores of the load."""
    port = find_port()
    command = [sys.executable, "-m", "bench.stub", str(port)]
    with _running("stub", port, command, cpus=cpus or _other_cpus()) as subject:
        yield subject


@contextmanager
def running_bare(stub: Subject, *, cpus: set[int] | None = None) -> Iterator[Subject]:
    """cpus: None for the one core of measured processes."""
    port = find_port()
    command = [sys.executable, "-m", "bench.bare", str(port), f"http://127.0.0.1:{stub.port}"]
    with _running("bare", port, command, cpus=cpus or subject_cpus()) as subject:
        yield subject


@contextmanager
def running_gateway(
    stub: Subject, folder: Path, more: str = "", *, models: str = "", admin_port: int = 0
) -> Iterator[Subject]:
    """more: further settings as YAML; models: further items of `models`. Its store is in `folder`."""
    settings = _write_settings(stub, folder, f"disk:{folder}/store", more, models, admin_port)
    port = find_port()
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(settings), "--port", str(port)]
    with _running("gateway", port, command, subject_cpus(), _GATEWAY_SETTLE_SECONDS) as subject:
        yield subject


@contextmanager
def running_workers(
    stub: Subject, name: str, workers: int, *, store: str, more: str = "", cpus: set[int] | None = None
) -> Iterator[Subject]:
    """store: as in the settings, where `{folder}` is a folder of its own. cpus: None for all cores."""
    with tempfile.TemporaryDirectory() as folder:
        settings = _write_settings(stub, Path(folder), store.format(folder=folder), more)
        port = find_port()
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(settings), "--port", str(port)]
        command += ["--workers", str(workers)]
        with _running(name, port, command, cpus or all_cpus(), _GATEWAY_SETTLE_SECONDS) as subject:
            yield subject


@contextmanager
def running_redis() -> Iterator[Subject]:
    """An empty one that writes nothing to disk, on all cores."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise SystemExit("bench: redis-server is not installed (apt-get install redis-server)")
    port = find_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with _running("redis", port, command, all_cpus()) as subject:
        yield subject


def _write_settings(
    stub: Subject, folder: Path, store: str, more: str, models: str = "", admin_port: int = 0
) -> Path:
    settings = folder / "gateway.yaml"
    text = _SETTINGS.format(store=store, port=stub.port, more=more, models=models, admin_port=admin_port)
    settings.write_text(text)
    return settings


def pin_load() -> None:
    """The load shares its core with the upstream. The measured process has the other core."""
    os.sched_setaffinity(0, _other_cpus())


@contextmanager
def _running(
    name: str,
    port: int,
    command: Sequence[str],
    cpus: set[int],
    settle_seconds: float = _OTHERS_SETTLE_SECONDS,
) -> Iterator[Subject]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        os.sched_setaffinity(process.pid, cpus)
        _wait_for(name, port, process)
        yield Subject(name, port, process, settle_seconds)
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


def find_port() -> int:
    """A free port below those for outgoing connections, because the load opens many of these."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def all_cpus() -> set[int]:
    """Also those that this process has left to others."""
    return os.sched_getaffinity(os.getppid()) | os.sched_getaffinity(0)


def subject_cpus() -> set[int]:
    return {max(all_cpus())}


def _other_cpus() -> set[int]:
    """All cores but that of the measured process; the same core if it is the only one."""
    cpus = all_cpus()
    return cpus - {max(cpus)} or cpus
