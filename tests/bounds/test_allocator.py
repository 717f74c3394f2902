"""Freed bodies leave the process."""

import platform
import subprocess
import sys

import pytest

# Bodies come and go beside small blocks that stay. Prints the MB that are left of them.
_PROGRAM = """
import os
from pathlib import Path
from gateway.bounds.allocator import return_freed_memory

def read_rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

assert return_freed_memory()
before, stays = read_rss(), []
for size in (4_000_000, 3_000_000, 2_000_000):
    bodies = []
    for _ in range(50):
        bodies.append(b"x" * size)
        stays.append(bytearray(100_000))
    del bodies
print((read_rss() - before) // 1_000_000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about one C library")
def test_the_memory_of_large_bodies_goes_back_to_the_system() -> None:
    left = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, check=True, text=True)
    # The blocks that stay have 15 MB.
    assert int(left.stdout) < 50
