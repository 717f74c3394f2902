"""`refold run -- COMMAND`: one command with a gateway of its own, in one process.

The command has the terminal, and with it the signals that its keys send. This process answers no key: it
passes on what only it is sent, stops when the command is stopped, and ends with the command.
"""

import argparse
import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.app.gateway import SERVICE, Gateway
from gateway.app.serve import run_loop
from gateway.command_line.clients import KnownClient, OwnSettings, find_client
from gateway.command_line.figures import show_number_of, show_tokens, show_usd
from gateway.command_line.options import load_chosen_settings
from gateway.command_line.process_setup import open_standard_streams, set_up_process
from gateway.reporting.metrics import definitions
from gateway.settings import (
    BUILT_IN_UPSTREAMS,
    WIRE_FORMATS,
    Problem,
    Settings,
    SettingsError,
    check_url,
    list_warnings,
)
from gateway.store.address import find_folder
from gateway.store.interface import StoreError

log: Final = logging.getLogger("gateway")

# As shells report them.
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127
_SIGNALLED: Final = 128
_ASK_SECONDS: Final = 2.0
_ID_LENGTH: Final = 8
# A larger log makes room for a new one.
_LOG_BYTES: Final = 16 << 20


def run(options: argparse.Namespace, env: Mapping[str, str] = os.environ) -> int:
    """The exit status. Raises SettingsError."""
    open_standard_streams()
    program, client = options.program, find_client(options.program)
    if shutil.which(program) is None:
        is_there = os.sep in program and Path(program).exists()
        _say(f"{program}: {'cannot be executed' if is_there else 'no such command'}")
        return _NOT_EXECUTABLE if is_there else _NOT_FOUND
    own = client.read_own(env, options.arguments)
    settings = _choose_upstreams(load_chosen_settings(options, env), client, dict(env) | dict(own.values))
    try:
        log_path = _open_log(settings)
        for warning in list_warnings(settings):
            log.warning("settings: %s", warning)
        words = [program, *client.arguments, *own.arguments, *options.arguments]
        return run_loop(_run(settings, words, _point(client, own, env), log_path))
    except (StoreError, OSError) as error:
        _say(str(error))
        return 1


def _say(text: str) -> None:
    print(f"refold: {text}", file=sys.stderr)


# Where requests go


def _choose_upstreams(settings: Settings, client: KnownClient, values: Mapping[str, str]) -> Settings:
    """What the client's variables name takes the place of the built-in upstreams. Raises SettingsError."""
    built_in = {name: facts["base_url"] for name, facts in BUILT_IN_UPSTREAMS.items()}
    if {name: upstream.base_url for name, upstream in settings.upstreams.items()} != built_in:
        return settings
    upstreams = dict(settings.upstreams)
    for variable, name in client.reads.items():
        if not values.get(variable):
            continue
        url = _check_address(variable, values[variable])
        if name == "all":
            formats = frozenset(WIRE_FORMATS)
            upstreams = {"default": replace(upstreams["default"], base_url=url, formats=formats)}
        else:
            # Clients of Anthropic's API add /v1 themselves. opencode has it in the address.
            is_bare = name == "anthropic" and not url.endswith("/v1")
            upstreams[name] = replace(upstreams[name], base_url=f"{url}/v1" if is_bare else url)
    return replace(settings, upstreams=upstreams)


def _check_address(variable: str, address: str) -> str:
    """Raises SettingsError for what is no address, or that of a gateway."""
    try:
        url = check_url(address)
    except ValueError as error:
        raise SettingsError([Problem(variable, str(error))]) from None
    if _is_gateway(url):
        raise SettingsError([Problem(variable, f"{url} is a gateway itself; point it at the model API")])
    return url


def _is_gateway(url: str) -> bool:
    parts = urlsplit(url)
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=_ASK_SECONDS)
    try:
        connection.request("GET", "/healthz")
        return SERVICE.encode() in connection.getresponse().read(1 << 10)
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _point(client: KnownClient, own: OwnSettings, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of the command. Its way to this machine leads through no proxy."""
    direct = {name: ",".join(filter(None, (env.get(name), "127.0.0.1"))) for name in ("no_proxy", "NO_PROXY")}
    return {**env, **direct, **client.sets, **own.sets}


# The process


def _open_log(settings: Settings) -> Path:
    """A file beside the store, so that no line gets into the screen of the command."""
    directory = find_folder(settings.store)
    if directory is None:
        number, name = tempfile.mkstemp(prefix="refold-", suffix=".log")
        path = Path(name)
    else:
        path = directory.with_name(f"{directory.name}.log")
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    logging.raiseExceptions = False
    logging.basicConfig(handlers=[logging.StreamHandler(os.fdopen(number, "a", encoding="utf-8"))])
    set_up_process(settings.log, f"run-{os.getpid()}")
    return path


async def _run(settings: Settings, words: list[str], env: dict[str, str], log_path: Path) -> int:
    begun_seconds = time.time()
    async with Gateway(settings) as gateway:
        root = f"http://127.0.0.1:{gateway.port}"
        log.info("admin port %d; runs %s", gateway.admin_port, words[0])
        status = await _run_command(
            [word.replace("{root}", root) for word in words],
            {name: value.replace("{root}", root) for name, value in env.items()},
            gateway,
        )
    _say(_describe(gateway, settings, words[0], begun_seconds, log_path))
    return status


async def _run_command(words: list[str], env: dict[str, str], gateway: Gateway) -> int:
    """Its exit status as a shell reports it."""
    child: subprocess.Popen[bytes] | None = None
    loop = asyncio.get_running_loop()

    def pass_on(number: signal.Signals) -> None:
        if child is not None and child.returncode is None:
            # Not `child.send_signal`: that would also wait for it.
            os.kill(child.pid, number)
        else:
            gateway.stop_draining()

    # Handlers, as the command would inherit that a signal is ignored. What was ignored before, stays so.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            # A key of the terminal is for the command.
            signal.signal(number, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, pass_on, number)
    try:
        child = subprocess.Popen(words, env=env)  # noqa: ASYNC220 - that of the loop ignores other signals
    except OSError as error:
        _say(f"{words[0]}: {error.strerror}")
        return _NOT_EXECUTABLE
    return await asyncio.to_thread(_wait, child)


def _wait(child: "subprocess.Popen[bytes]") -> int:
    """While it is stopped at a terminal, this process is, too, so that a shell takes the terminal back."""
    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
        if os.isatty(0):
            # All threads stop before this one goes on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            os.kill(child.pid, signal.SIGCONT)
    child.returncode = os.waitstatus_to_exitcode(status)
    return child.returncode if child.returncode >= 0 else _SIGNALLED - child.returncode


# What came of it


def _describe(
    gateway: Gateway, settings: Settings, program: str, begun_seconds: float, log_path: Path
) -> str:
    """In one line, of this run alone."""
    process, metrics = gateway.process, gateway.process.metrics
    requests = sum(int(metrics.sum(definitions.REQUESTS, format=form)) for form in WIRE_FORMATS)
    if not requests:
        return f"no request of {program} came to the gateway, so it did nothing; log: {log_path}"
    compactions = int(metrics.sum(definitions.COMPACTIONS, result="done"))
    if not compactions:
        return f"nothing was compacted in {show_number_of(requests, 'request')}"
    saved = show_tokens(int(metrics.sum(definitions.TOKENS, kind="saved")))
    told = f"{show_number_of(compactions, 'compaction')}, {saved} tokens not sent"
    without, with_it = (metrics.sum(definitions.COMPARED_USD, gateway=way) for way in ("without", "with"))
    if without or with_it:
        usd = show_usd(abs(without - with_it))
        told += f", {usd} saved" if without >= with_it else f", {usd} more than without it"
    compacted = (
        activity.id[:_ID_LENGTH]
        for activity in process.activity.list()
        if any(note.at_seconds >= begun_seconds for note in activity.summaries)
    )
    newest = next(compacted, None)
    if newest is None or settings.store == "memory:":
        return told
    return f"{told}; to look at it: refold serve, then refold conversations show {newest}"
