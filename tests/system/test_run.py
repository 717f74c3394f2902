"""`refold run -- COMMAND` as a process: what the command gets, how it ends, and what is left behind."""

import asyncio
import contextlib
import hashlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.system.processes import linux_only
from tests.toy.house import make_settings
from tests.toy.product import run_command, serve_process
from tests.toy.upstream import ToyUpstream

# A process takes two seconds of a core to start, and some of these start four.
pytestmark = pytest.mark.timeout(600)

_REPOSITORY = Path(__file__).resolve().parents[2]
_COMMAND = (sys.executable, "-m", "gateway", "run")
_PATIENCE_SECONDS = 350.0
_ADDRESSES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE")
# An agent that sends its whole history. argv: turns.
_AGENT = """
import json, os, sys, time, urllib.request
messages = []
for turn in range(int(sys.argv[1])):
    text = " ".join(f"{turn} word{number}" for number in range(900)) + f" of {sys.argv[1]}"
    messages.append({"role": "user", "content": text})
    body = json.dumps({"model": "toy-model", "messages": messages}).encode()
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-a"}
    asked = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    messages.append(json.load(urllib.request.urlopen(asked))["choices"][0]["message"])
# A summary that the end of the command cuts off would not be counted.
time.sleep(1)
print("done")
"""
# Says that it has begun, and how it ended.
_SLEEPER = """
import signal, sys, time
def end(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(9)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
        signal.signal(number, end)
print("begun", flush=True)
time.sleep(60)
"""
# As a shell with job control: the job is a group of its own in the foreground. It says which.
_JOB = """
import os, signal, sys
job = os.fork()
if not job:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpgrp())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    print(os.getpid(), flush=True)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        print("job stopped", flush=True)
    else:
        print("job ended", os.waitstatus_to_exitcode(status), flush=True)
        break
"""


def make_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    for name in _ADDRESSES:
        kept.pop(name, None)
    return {**kept, "PYTHONPATH": str(_REPOSITORY), **more}


def run(*words: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """To its end, without a terminal."""
    return subprocess.run(
        [*_COMMAND, *words],
        cwd=folder,
        env=make_environment(**env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )


async def run_beside(*words: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The same while the toy of this process answers."""
    return await asyncio.to_thread(lambda: run(*words, folder=folder, **env))


@contextlib.contextmanager
def sleeping(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`run` with the sleeper, which has begun."""
    words = [*_COMMAND, "--", sys.executable, "-c", _SLEEPER]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, cwd=folder, env=make_environment(), stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "begun\n"
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


def list_group(leader: int) -> list[int]:
    """The processes of a group that are not yet reaped, by /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == leader and fields[0] != "Z":
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("script", "status"), [("exit 7", 7), ("exit 0", 0), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_exit_status_is_that_of_the_command(script: str, status: int, tmp_path: Path) -> None:
    assert run("--", "sh", "-c", script, folder=tmp_path).returncode == status


def test_a_command_that_cannot_be_run_has_the_status_that_a_shell_gives_it(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    absent, refused = (run("--", word, folder=tmp_path) for word in ("no-such-program", "./plain"))
    assert (absent.returncode, refused.returncode) == (127, 126)
    assert "no such command" in absent.stderr and "cannot be executed" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_the_log_is_a_file_beside_the_store_and_the_terminal_is_the_commands(tmp_path: Path) -> None:
    shown = run("--", "sh", "-c", "echo out; echo err >&2", folder=tmp_path)
    assert shown.stdout == "out\n"
    first, told = shown.stderr.splitlines()
    assert first == "err" and told.startswith("refold: no request of sh came to the gateway")
    log = tmp_path / ".gateway.log"
    assert "listening on http://127.0.0.1:" in log.read_text() and log.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [".gateway", ".gateway.log"]


async def test_what_was_compacted_and_saved_is_said_in_one_line(tmp_path: Path) -> None:
    async with ToyUpstream(window=16_000) as toy:
        config = tmp_path / "gateway.yaml"
        url = f"disk:{tmp_path}/store"
        more = "admin: {port: 1}\nlisten: {port: 1}\n"
        config.write_text(make_settings(toy, store=url, price="{input: 1, output: 2}", more=more))
        words = ("--config", str(config), "--", sys.executable, "-c", _AGENT)
        short = await run_beside(*words, "2", folder=tmp_path)
        long = await run_beside(*words, "12", folder=tmp_path)
        again = await run_beside(*words, "1", folder=tmp_path)
    assert (short.returncode, short.stdout) == (0, "done\n")
    assert short.stderr == "refold: nothing was compacted in 2 requests\n"
    assert (long.returncode, long.stdout) == (0, "done\n")
    found = re.fullmatch(
        r"refold: (\d+) compactions?, ([0-9.]+)k tokens not sent, \$[0-9.]+ (saved|more than without it); "
        r"to look at it: refold serve, then refold conversations show [0-9a-f]{8}\n",
        long.stderr,
    )
    assert found is not None, long.stderr
    assert int(found[1]) == len(toy.summaries) and float(found[2]) > 1
    # Only of this run, though the store has the numbers of all.
    assert again.stderr == "refold: nothing was compacted in 1 request\n"
    assert (tmp_path / "store.log").exists()


async def test_what_the_variables_named_before_becomes_the_upstream(tmp_path: Path) -> None:
    async with ToyUpstream() as toy:
        agent = ("--", sys.executable, "-c", _AGENT, "1")
        for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
            shown = await run_beside(*agent, folder=tmp_path, **{name: toy.base_url})
            assert shown.returncode == 0, shown.stderr
        assert len(toy.chats) == 2
        options = ("--upstream", toy.base_url)
        shown = await run_beside(*options, *agent, folder=tmp_path, OPENAI_BASE_URL="http://x.test/v1")
        assert shown.returncode == 0 and len(toy.chats) == 3
    wrong = run("--", "true", folder=tmp_path, OPENAI_BASE_URL="nowhere")
    assert wrong.returncode == 2 and "OPENAI_BASE_URL: must be http" in wrong.stderr


async def test_a_gateway_is_refused_as_the_upstream(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with serve_process(None, tmp_path / "other", "--admin-port", "0") as other:
        name, url = "ANTHROPIC_BASE_URL", f"http://127.0.0.1:{other.port}"
        shown = await run_beside("--", "echo", "ran", folder=tmp_path, **{name: url})
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr == f"{name}: {url} is a gateway itself; point it at the model API\n"


@linux_only
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_gateway_is_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    with sleeping(tmp_path) as running:
        os.kill(running.pid, number)
        shown, told = running.communicate(timeout=_PATIENCE_SECONDS)
        assert (shown, running.returncode) == (f"got {number.name}\n", 9)
        assert told.startswith("refold: no request") and list_group(running.pid) == []


@linux_only
def test_keys_of_the_terminal_are_for_the_command(tmp_path: Path) -> None:
    """Ctrl-Z and Ctrl-C in a pseudo-terminal."""
    with in_terminal(_SLEEPER, tmp_path) as (job, terminal):
        read_until(terminal, b"begun")
        assert len(list_group(job)) == 2
        os.write(terminal, b"\x1a")
        read_until(terminal, b"job stopped")
        os.killpg(job, signal.SIGCONT)
        # Until the command has the terminal again, a key of it may reach nobody.
        shown = read_until(terminal, b"got SIGINT", pressing=b"\x03")
        if b"job ended 9" not in shown:
            shown += read_until(terminal, b"job ended 9")
        assert b"refold: no request" in shown and b"Traceback" not in shown
        assert list_group(job) == []


@linux_only
def test_a_command_that_stops_only_itself_gives_the_terminal_back(tmp_path: Path) -> None:
    program = (
        "import os, signal; print('begun', flush=True); os.kill(os.getpid(), signal.SIGSTOP); print('again')"
    )
    with in_terminal(program, tmp_path) as (job, terminal):
        read_until(terminal, b"job stopped")
        os.killpg(job, signal.SIGCONT)
        assert b"again" in read_until(terminal, b"job ended 0")


@contextlib.contextmanager
def in_terminal(program: str, folder: Path) -> Iterator[tuple[int, int]]:
    """`run` with a Python program, as the job of a terminal: its process group and the terminal."""
    process, terminal = pty.fork()
    if not process:  # pragma: no cover - another process
        # A test run in the background ignores it, and so would the command.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.chdir(folder)
        words = [sys.executable, "-c", _JOB, *_COMMAND, "--", sys.executable, "-c", program]
        os.execve(sys.executable, words, make_environment())
    leader = process
    try:
        leader = int(read_until(terminal, b"\n").split()[0])
        yield leader, terminal
    finally:
        for group in (leader, process):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(process, 0)


def read_until(terminal: int, words: bytes, pressing: bytes = b"") -> bytes:
    """Until these words, or until nobody writes any more. pressing: a key, again while nothing comes."""
    read, end = b"", time.monotonic() + _PATIENCE_SECONDS
    os.write(terminal, pressing)
    with contextlib.suppress(OSError):
        while words not in read and time.monotonic() < end:
            if pressing and not select.select([terminal], [], [], 1)[0]:
                os.write(terminal, pressing)
            else:
                read += os.read(terminal, 4_096)
    assert words in read, read
    return read


async def test_two_at_once_share_the_store(tmp_path: Path) -> None:
    async with ToyUpstream(window=16_000) as toy:
        config = tmp_path / "gateway.yaml"
        config.write_text(make_settings(toy, store=f"disk:{tmp_path}/store"))
        words = ("--config", str(config), "--", sys.executable, "-c", _AGENT)
        both = await asyncio.gather(*(run_beside(*words, turns, folder=tmp_path) for turns in ("12", "9")))
        assert [(shown.returncode, shown.stdout) for shown in both] == [(0, "done\n")] * 2
        assert all(" tokens not sent; to look at it" in shown.stderr for shown in both), both
        shown = [line.stderr.split()[-1] for line in both]
        options = ("--config", str(config), "--admin-port", "0")
        async with serve_process(None, tmp_path, *options) as served:
            asked = ("conversations", "show", "--admin-port", str(served.admin_port))
            for identity in shown:
                done = await asyncio.to_thread(run_command, *asked, identity, cwd=tmp_path)
                assert done.status == 0, done.err


@pytest.mark.parametrize("words", [["--", "claude"], ["--", "sh", "-c", "true"]])
def test_no_file_of_the_user_is_changed(words: Sequence[str], tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    (home / ".claude").mkdir(parents=True)
    project.mkdir()
    (home / ".claude" / "settings.json").write_text('{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}}')
    program = project / "claude"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    before = hash_folder(home)
    env = {"HOME": str(home), "PATH": f"{project}:{os.environ['PATH']}"}
    assert run(*words, folder=project, **env).returncode == 0
    assert hash_folder(home) == before


def hash_folder(folder: Path) -> Mapping[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_gateway_that_cannot_start_is_said_in_a_line(tmp_path: Path) -> None:
    (tmp_path / ".gateway").mkdir()
    (tmp_path / ".gateway" / "foreign.txt").write_text("mine")
    shown = run("--", "echo", "ran", folder=tmp_path)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert shown.stderr.startswith("refold: store ") and len(shown.stderr.splitlines()) == 1
    assert run("--upstream", "x", "--", "echo", "ran", folder=tmp_path).returncode == 2
