"""`refold serve`: sets the process up, starts a gateway of one or several processes, and runs it."""

import argparse
import asyncio
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.app.reload import SettingsWatcher, run_reloads
from gateway.bounds.process import collect_garbage, tune_interpreter
from gateway.command_line.options import (
    SettingsSource,
    name_worker,
    parse_first_log,
    render_worker_arguments,
)
from gateway.command_line.process_setup import (
    HURRY_SECONDS,
    complain,
    end_within,
    logs_json,
    open_standard_streams,
    set_up_logging,
    set_up_process,
    warn,
)
from gateway.http.ports import bind_port, describe_bind_error
from gateway.settings import Listen, Settings
from gateway.store.address import find_folder

if TYPE_CHECKING:
    from gateway.app.gateway import Gateway
    from gateway.app.supervisor import Supervisor

log = logging.getLogger("gateway")

_CONTROLLING: Final = "/dev/tty"


def _has_terminal() -> bool:
    """Whether this process has one that is open."""
    try:
        os.close(os.open(_CONTROLLING, os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def serve(options: argparse.Namespace) -> int:
    """The exit status. Raises SettingsError, StoreError and OSError if it cannot serve."""
    open_standard_streams()
    if options.link is not None:
        return _serve_as_worker(options)
    # One that comes before there is a handler waits for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    # Before they are loaded, so that it sees a change in between.
    watcher = SettingsWatcher(Path(options.config)) if options.watch else None
    source = SettingsSource(options, os.environ)
    settings = source.load()
    set_up_process(settings.log, "supervisor" if options.workers > 1 else "")
    if options.workers == 1:
        # Not imported for the other commands: a health check runs every few seconds.
        from gateway.app.gateway import Gateway

        return run_loop(_run(settings, source, watcher, partial(Gateway, settings)))
    return run_loop(_run_supervisor(settings, source, watcher, options))


def _serve_as_worker(options: argparse.Namespace) -> int:
    from gateway.app.worker import run_worker

    set_up_process(parse_first_log(options.first_log), name_worker(options))
    return run_loop(run_worker(options))


def run_loop(main: Coroutine[None, None, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    else:
        return uvloop.run(main)


async def _run_supervisor(
    settings: Settings, source: SettingsSource, watcher: SettingsWatcher | None, options: argparse.Namespace
) -> int:
    from gateway.app.slot import WorkerFailed
    from gateway.app.supervisor import Supervisor

    arguments = render_worker_arguments(options, settings.log)
    try:
        make = partial(Supervisor, settings, source, arguments, options.workers)
        return await _run(settings, source, watcher, make)
    except WorkerFailed as error:
        complain(error.message, "")
        return error.status


async def _run(
    settings: Settings,
    source: SettingsSource,
    watcher: SettingsWatcher | None,
    make: "Callable[[], Gateway | Supervisor]",
) -> int:
    """Runs until SIGTERM or SIGINT, then lets open requests finish. A second signal ends the program."""
    loop = asyncio.get_running_loop()
    signals, reloads = _take_signals(loop)
    await _refuse_taken_port(settings.listen)
    warn(settings)
    async with make() as gateway:
        if not logs_json():
            _show_start_screen(settings, gateway)
        tune_interpreter()
        background = [loop.create_task(collect_garbage())]
        background += _start_reloads(gateway, source, watcher, reloads)
        failing = loop.create_task(gateway.wait_failure())
        stopping = loop.create_task(signals.get())
        await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
        log.info("draining")
        stopping.cancel()
        background.append(loop.create_task(_hurry(signals, gateway)))
    for task in background:
        task.cancel()
    if failing.done():
        raise failing.result()
    failing.cancel()
    return 0


def _start_reloads(
    gateway: "Gateway | Supervisor",
    source: SettingsSource,
    watcher: SettingsWatcher | None,
    wanted: asyncio.Event,
) -> "list[asyncio.Task[None]]":
    async def reload(loaded: Settings) -> None:
        await gateway.reload(loaded)
        set_up_logging(loaded.log, "supervisor" if gateway.workers > 1 else "")

    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(run_reloads(source.load, reload, wanted, gateway.count_reload))]
    if watcher is not None:
        tasks.append(loop.create_task(watcher.run(wanted.set)))
    return tasks


async def _refuse_taken_port(listen: Listen) -> None:
    """Before anything is opened, and before anything else is said. Raises OSError."""
    try:
        for bound in await bind_port(listen.host, listen.port):
            bound.close()
    except OSError as error:
        raise OSError(describe_bind_error(listen.host, listen.port, error, "--port")) from error


def _take_signals(loop: asyncio.AbstractEventLoop) -> "tuple[asyncio.Queue[None], asyncio.Event]":
    """From now on: those that end the program, and whether the settings are to be reloaded.

    SIGHUP reloads the settings, or ends the program as SIGTERM does if its terminal was closed.
    """
    signals: asyncio.Queue[None] = asyncio.Queue()
    reloads = asyncio.Event()
    # False for a process that never had one, such as a service.
    had_terminal = _has_terminal()

    def take_hang_up() -> None:
        if had_terminal and not _has_terminal():
            signals.put_nowait(None)
        else:
            reloads.set()

    loop.add_signal_handler(signal.SIGHUP, take_hang_up)
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, signals.put_nowait, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    return signals, reloads


async def _hurry(signals: "asyncio.Queue[None]", gateway: "Gateway | Supervisor") -> None:
    """After one more signal, what is queued is still written, but not for longer than a moment."""
    await signals.get()
    log.warning("stopping at once")
    # Workers end before the process that started them.
    end_within(HURRY_SECONDS if gateway.workers == 1 else 2 * HURRY_SECONDS)
    gateway.stop_draining()


def _show_start_screen(settings: Settings, gateway: "Gateway | Supervisor") -> None:
    from gateway.command_line.start_screen import Places, render_start_screen

    places = Places(
        gateway.port,
        gateway.admin_port,
        gateway.windows,
        find_folder(settings.store),
        program=_find_program(),
        logs_compactions=log.isEnabledFor(logging.INFO),
        workers=gateway.workers,
    )
    print(render_start_screen(settings, places), file=sys.stderr)


def _find_program() -> str:
    """How this program was called, as it can be typed in the same folder."""
    path = Path(sys.argv[0])
    return shlex.quote(str(path)) if path.name in ("refold", "gateway") else "python -m gateway"
