"""The bench of the open page prints its ratio, of a gateway that really serves it."""

import re
import subprocess
import sys

from tests.hostile.process import linux_only


@linux_only
def test_the_page_is_read_while_the_load_runs() -> None:
    command = [sys.executable, "-c", _SHORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    row = done.stdout.splitlines()[-1].split()
    assert row[0] == "200" and re.fullmatch(r"\d+\.\d{3}", row[3])
    lists, list_kb = int(row[-4]), float(row[-3])
    assert lists > 0 and list_kb > 20


_SHORT = """
import asyncio, tempfile
from pathlib import Path
from bench.page import print_page
from bench.subject import find_port, running_gateway, running_stub

with tempfile.TemporaryDirectory() as folder, running_stub() as stub:
    port = find_port()
    with running_gateway(stub, Path(folder), admin_port=port) as gateway:
        asyncio.run(print_page(gateway, port, rounds=1, turns=2))
"""
