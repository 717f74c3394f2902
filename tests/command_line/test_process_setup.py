"""What each process of a gateway sets up, seen from outside."""

import json
import signal
import subprocess
import sys

import pytest

_SAY = "import logging; logging.getLogger('gateway.x').info('hello')"
_SET_UP = (
    "from gateway.command_line.process_setup import end_within, open_standard_streams, set_up_logging\n"
    "from gateway.command_line.process_setup import set_up_process\n"
    "from gateway.settings import Log\n"
)


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _SET_UP + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("name", "words"), [("", "INFO gateway.x hello"), ("worker-2", "worker-2 INFO gateway.x hello")]
)
def test_lines_name_their_process_where_there_are_several(name: str, words: str) -> None:
    (line,) = run(f"set_up_process(Log(), '{name}')\n{_SAY}").stderr.splitlines()
    _, _, rest = line.split(" ", 2)
    assert rest == words


def test_a_log_level_above_info_hides_it() -> None:
    assert run(f"set_up_process(Log(level='warning'))\n{_SAY}").stderr == ""


def test_a_reload_changes_level_and_format() -> None:
    program = f"set_up_process(Log())\n{_SAY}\nset_up_logging(Log(format='json', level='error'))\n{_SAY}\n"
    first, second = run(program + _SAY.replace(".info", ".error")).stderr.splitlines()
    assert first.endswith(" INFO gateway.x hello") and json.loads(second)["level"] == "error"


_FAIL_IN_THREAD = (
    "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()"
)


@pytest.mark.parametrize("failure", ["1 / 0", _FAIL_IN_THREAD])
def test_an_uncaught_error_is_a_line_of_json_too(failure: str) -> None:
    (line,) = run(f"set_up_process(Log(format='json'), 'worker-1')\n{failure}").stderr.splitlines()
    read = json.loads(line)
    assert (read["level"], read["message"], read["process"]) == ("critical", "uncaught error", "worker-1")
    assert read["exception"].splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_an_uncaught_error_is_pythons_own_text_otherwise() -> None:
    assert run("set_up_process(Log())\n1 / 0").stderr.startswith("Traceback (most recent call last)")


def test_a_process_ends_though_it_is_busy() -> None:
    ended = run("end_within(0.1)\nwhile True: pass")
    assert ended.returncode == -signal.SIGALRM


def test_streams_that_were_closed_lead_nowhere_and_are_inherited() -> None:
    ended = run(
        "import os\nos.close(0)\nos.close(1)\nopen_standard_streams()\n"
        "assert os.path.samestat(os.fstat(0), os.stat(os.devnull))\n"
        "assert os.path.samestat(os.fstat(1), os.stat(os.devnull))\n"
        "assert os.get_inheritable(1)\nos.write(1, b'x')"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
