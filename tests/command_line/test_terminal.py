"""Whether the terminal of a process was closed: asked in a process of its own, with a terminal of its own."""

import os
import pty
import subprocess
import sys
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
# Says whether its terminal is gone: at once, and after SIGHUP, which its end brings.
_PROGRAM = """
import os, signal, sys
from gateway.command_line.terminal import Terminal
report, terminal = int(sys.argv[1]), Terminal()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
os.write(report, b"%d" % terminal.is_gone)
signal.sigwait({signal.SIGHUP})
os.write(report, b"%d" % terminal.is_gone)
"""


def test_a_terminal_is_gone_once_it_was_closed() -> None:
    reading, writing = os.pipe()
    process, terminal = pty.fork()
    if not process:  # pragma: no cover - another process
        os.set_inheritable(writing, True)
        os.chdir(_REPOSITORY)
        os.execv(sys.executable, [sys.executable, "-c", _PROGRAM, str(writing)])
    os.close(writing)
    assert os.read(reading, 1) == b"0"
    os.close(terminal)
    assert os.read(reading, 1) == b"1"
    assert os.waitpid(process, 0)[1] == 0
    os.close(reading)


def test_a_service_has_no_terminal_that_could_be_gone() -> None:
    """`setsid` takes it away from the child, as a service manager does."""
    program = "from gateway.command_line.terminal import Terminal; print(Terminal().is_gone)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=_REPOSITORY,
        start_new_session=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
