import subprocess
import sys

from bench.subject import Subject, read_rss_bytes

_SPAWN = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
child.communicate(b"\\n")
"""


def test_the_workers_of_a_program_count_too() -> None:
    process = subprocess.Popen([sys.executable, "-c", _SPAWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    lines = sorted(process.stdout.readline() for _ in range(2))
    subject = Subject("both", 0, process)
    child = int(lines[0])
    assert subject.list_processes() == [process.pid, child]
    assert subject.read_rss_bytes() > read_rss_bytes(process.pid) > 0
    assert subject.read_cpu_seconds() > 0
    process.communicate(b"\n")
