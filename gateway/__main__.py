"""The command line: each command of `gateway`, and the running of `gateway serve`."""

import argparse
import asyncio
import logging
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from gateway.bounds.interpreter import collect_garbage, tune_interpreter
from gateway.command_line.health import find_ill_health
from gateway.command_line.json_reports import list_warnings
from gateway.command_line.options import (
    SettingsSource,
    load_chosen_settings,
    name_worker,
    parse_arguments,
    parse_first_log,
    render_worker_arguments,
)
from gateway.command_line.process_setup import (
    HURRY_SECONDS,
    end_within,
    logs_json,
    open_standard_streams,
    set_up_logging,
    set_up_process,
)
from gateway.command_line.terminal import Terminal
from gateway.reload.reloader import Reloader
from gateway.reload.watcher import SettingsWatcher
from gateway.settings import Settings, SettingsError, load_settings, render_summary
from gateway.store import StoreError, find_directory, open_store

if TYPE_CHECKING:
    from gateway.command_line.model_report import ModelReport

log = logging.getLogger("gateway")

# As a shell reports a program that Ctrl-C has ended. `serve` ends with 0.
_INTERRUPTED: Final = 130
# After each of some twenty turns of the demo.
_DEMO_PAUSE_SECONDS: Final = 0.3


class Running(Protocol):
    """A gateway of one process or of several, from its start on."""

    @property
    def port(self) -> int: ...

    @property
    def admin_port(self) -> int: ...

    @property
    def windows(self) -> int: ...

    @property
    def workers(self) -> int: ...

    async def reload(self, settings: Settings) -> None: ...

    def note_reload(self, *, has_failed: bool) -> None: ...

    async def wait_failure(self) -> Exception:
        """Returns when it cannot serve any longer, with the reason."""

    async def stop(self) -> None: ...

    def stop_draining(self) -> None: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 for success; 1 if the gateway cannot serve or is not well, a model's window is
    unknown, or the demo failed; 2 for wrong usage or settings.
    """
    options = parse_arguments(arguments)
    try:
        status = _COMMANDS[options.command](options)
        # Not `sys.stdout.flush()`: after `>&-` there is no such stream, which `print` allows for.
        print(end="", flush=True)
        return status
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # What reads the output has ended, such as `head`. At its exit Python would try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (StoreError, OSError) as error:
        _complain(str(error))
        return 1


def _complain(text: str, beginning: str = "gateway: ") -> None:
    if logs_json():
        log.error("cannot serve: %s", text)
    else:
        print(f"{beginning}{text}", file=sys.stderr)


def _serve(options: argparse.Namespace) -> int:
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
        return _run_loop(_run_alone(settings, source, watcher))
    return _run_loop(_run_supervisor(settings, source, watcher, options))


def _serve_as_worker(options: argparse.Namespace) -> int:
    from gateway.workers.worker import run_worker

    set_up_process(parse_first_log(options.first_log), name_worker(options))
    return _run_loop(run_worker(options))


def _run_loop(main: Coroutine[None, None, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    else:
        return uvloop.run(main)


def _demo(options: argparse.Namespace) -> int:
    from gateway.demo.play import run_demo

    # Somebody who watches gets some seconds to look.
    pause_seconds = _DEMO_PAUSE_SECONDS if options.keep or sys.stdout.isatty() else 0.0
    keep = _wait_signal if options.keep else None
    running = run_demo(partial(print, flush=True), keep=keep, pause_seconds=pause_seconds)
    return 0 if asyncio.run(running) else 1


async def _wait_signal() -> None:
    """Returns after SIGTERM or SIGINT."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, ended.set)
    await ended.wait()


def _doctor(options: argparse.Namespace) -> int:
    from gateway.doctor.report import run_doctor

    return run_doctor(options)


def _conversations(options: argparse.Namespace) -> int:
    from gateway.command_line.conversation_commands import run_conversations

    return run_conversations(options)


def _top(options: argparse.Namespace) -> int:
    from gateway.command_line.top import run_top

    return run_top(options)


def _models(options: argparse.Namespace) -> int:
    from gateway.command_line.console import render_json
    from gateway.command_line.model_report import describe_sources, list_sources

    settings = load_chosen_settings(options, os.environ)
    if options.name is not None:
        report = _make_report(settings, options.name, asks=options.ask)
        print(render_json(report.facts) if options.json else report.text)
        return 0 if report.is_known else 1
    print(render_json(list_sources(settings)) if options.json else describe_sources(settings))
    return 0


def _make_report(settings: Settings, model: str, *, asks: bool) -> "ModelReport":
    from gateway.command_line.model_report import describe_model

    # What the book logs about an unknown model is in the report; what an upstream has answered is not.
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    logging.getLogger("gateway.discovery").setLevel(logging.INFO)
    return asyncio.run(describe_model(settings, model, asks=asks))


def _replay(options: argparse.Namespace) -> int:
    from gateway.command_line.console import make_console
    from gateway.replay.command import run_replay

    return run_replay(options, os.environ, make_console(), make_console(is_error=True))


def _export(options: argparse.Namespace) -> int:
    from gateway.command_line.export import run_export

    return run_export(options)


def _check(options: argparse.Namespace) -> int:
    settings = load_settings(Path(options.file), os.environ)
    # `serve` would refuse a valid store URL of a kind that this build does not support.
    open_store(settings.store)
    report = _make_report(settings, options.model, asks=False) if options.model is not None else None
    if options.json:
        _print_facts(settings, report)
    else:
        _warn(settings)
        print(render_summary(settings), *([report.text] if report is not None else []), sep="\n")
    return 0 if report is None or report.is_known else 1


def _print_facts(settings: Settings, report: "ModelReport | None") -> None:
    from gateway.command_line.console import render_json
    from gateway.command_line.json_reports import list_facts

    print(render_json({**list_facts(settings), **({"model": report.facts} if report is not None else {})}))


def _tenants(options: argparse.Namespace) -> int:
    from gateway.command_line.console import render_json
    from gateway.command_line.json_reports import list_tenant_facts
    from gateway.command_line.tenant_commands import ask_person, list_tenants, purge_tenant

    if options.action == "list":
        if options.json:
            tenants = list_tenant_facts(load_chosen_settings(options, os.environ))
            print(render_json({"tenants": tenants}))
        else:
            print(list_tenants(options, os.environ))
        return 0
    return purge_tenant(options, os.environ, ask_person, partial(print, file=sys.stderr))


def _schema(_: argparse.Namespace) -> int:
    from gateway.settings.json_schema import render_json_schema

    print(render_json_schema(), end="")
    return 0


def _health(options: argparse.Namespace) -> int:
    ill_health = find_ill_health(options, os.environ)
    if ill_health is not None:
        print(f"gateway: {ill_health}", file=sys.stderr)
    return 0 if ill_health is None else 1


def _warn(settings: Settings) -> None:
    for warning in list_warnings(settings):
        print(f"warning: {warning}", file=sys.stderr)


def _greet(settings: Settings, gateway: Running) -> None:
    """Shows what was started to a person, or only the warnings to a program that reads the log."""
    if logs_json():
        for warning in list_warnings(settings):
            log.warning("settings: %s", warning)
    else:
        _show_start_screen(settings, gateway)


async def _run_alone(settings: Settings, source: SettingsSource, watcher: SettingsWatcher | None) -> int:
    # Not imported for the other commands: a health check runs every few seconds.
    from gateway.app import start_gateway

    return await _run(settings, source, watcher, partial(start_gateway, settings))


async def _run_supervisor(
    settings: Settings, source: SettingsSource, watcher: SettingsWatcher | None, options: argparse.Namespace
) -> int:
    from gateway.workers.supervisor import start_supervisor
    from gateway.workers.worker_process import WorkerFailed

    start = partial(
        start_supervisor, settings, source, render_worker_arguments(options, settings.log), options.workers
    )
    try:
        return await _run(settings, source, watcher, start)
    except WorkerFailed as error:
        _complain(error.message, "")
        return error.status


async def _run(
    settings: Settings,
    source: SettingsSource,
    watcher: SettingsWatcher | None,
    start: Callable[[], Awaitable[Running]],
) -> int:
    """Runs until SIGTERM or SIGINT, then lets open requests finish. A second signal ends the program.

    SIGHUP reloads the settings, or ends the program as SIGTERM does if its terminal was closed.
    """
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    reloads, terminal = asyncio.Event(), Terminal()
    loop.add_signal_handler(
        signal.SIGHUP, lambda: signals.put_nowait(None) if terminal.is_gone else reloads.set()
    )
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, signals.put_nowait, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    if not logs_json():
        _warn(settings)
    gateway = await start()
    _greet(settings, gateway)
    tune_interpreter()

    async def reload(loaded: Settings) -> None:
        await gateway.reload(loaded)
        set_up_logging(loaded.log, "supervisor" if gateway.workers > 1 else "")

    background = [
        loop.create_task(collect_garbage()),
        loop.create_task(Reloader(source.load, reload, reloads, gateway.note_reload).run()),
    ]
    if watcher is not None:
        background.append(loop.create_task(watcher.run(reloads.set)))
    failing = loop.create_task(gateway.wait_failure())
    stopping = loop.create_task(signals.get())
    try:
        await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
        log.info("draining")
        stopping.cancel()
        background.append(loop.create_task(_hurry(signals, gateway)))
    finally:
        await gateway.stop()
    for task in background:
        task.cancel()
    if failing.done():
        raise failing.result()
    failing.cancel()
    return 0


async def _hurry(signals: "asyncio.Queue[None]", gateway: Running) -> None:
    """After one more signal, what is queued is still written, but not for longer than a moment."""
    await signals.get()
    log.warning("stopping at once")
    # Workers end before the process that started them.
    end_within(HURRY_SECONDS if gateway.workers == 1 else 2 * HURRY_SECONDS)
    gateway.stop_draining()


def _show_start_screen(settings: Settings, gateway: Running) -> None:
    from gateway.command_line.start_screen import Places, render_start_screen

    places = Places(
        gateway.port,
        gateway.admin_port,
        gateway.windows,
        find_directory(settings.store),
        program=_find_program(),
        logs_compactions=log.isEnabledFor(logging.INFO),
        workers=gateway.workers,
    )
    print(render_start_screen(settings, places), file=sys.stderr)


def _find_program() -> str:
    """How this program was called, as it can be typed in the same folder."""
    path = Path(sys.argv[0])
    return shlex.quote(str(path)) if path.name == "gateway" else "python -m gateway"


_COMMANDS: Final = {
    "serve": _serve,
    "demo": _demo,
    "doctor": _doctor,
    "models": _models,
    "replay": _replay,
    "export": _export,
    "check": _check,
    "conversations": _conversations,
    "top": _top,
    "schema": _schema,
    "tenants": _tenants,
    "health": _health,
}


if __name__ == "__main__":
    sys.exit(main())
