"""The command line: `gateway serve`, `demo`, `models`, `check` and `health`."""

import argparse
import asyncio
import logging
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.bounds.allocator import return_freed_memory
from gateway.bounds.descriptors import raise_limit
from gateway.bounds.interpreter import collect_garbage, tune_interpreter
from gateway.command_line.health import find_ill_health
from gateway.command_line.options import load_chosen_settings, parse_arguments
from gateway.settings import Settings, SettingsError, describe_exposure, load_settings, render_summary
from gateway.store import StoreError, find_directory, open_store

if TYPE_CHECKING:
    from gateway.app import Gateway

log = logging.getLogger("gateway")

# As a shell reports a program that Ctrl-C has ended. `serve` ends with 0.
_INTERRUPTED: Final = 130
# Time to write what is queued after a second signal.
_HURRY_SECONDS: Final = 0.7


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 for success; 1 if the gateway cannot serve or is not well, a model's window is
    unknown, or the demo failed; 2 for wrong usage or settings.
    """
    options = parse_arguments(arguments)
    if options.command == "serve" and options.workers != 1:
        print(
            "gateway: several --workers need a shared store, which this version does not have",
            file=sys.stderr,
        )
        return 2
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
        print(f"gateway: {error}", file=sys.stderr)
        return 1


def _serve(options: argparse.Namespace) -> int:
    settings = load_chosen_settings(options, os.environ)
    _set_up_logging(options.log_level)
    raise_limit()
    return_freed_memory()
    try:
        import uvloop
    except ImportError:
        asyncio.run(_run(settings))
    else:
        uvloop.run(_run(settings))
    return 0


def _set_up_logging(level: str) -> None:
    """For the gateway's own loggers: at `debug`, libraries log headers, and so keys."""
    logging.basicConfig(
        level=max(logging.INFO, logging.getLevelNamesMapping()[level.upper()]),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("gateway").setLevel(level.upper())
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def _demo(_: argparse.Namespace) -> int:
    from gateway.demo.play import run_demo

    return 0 if asyncio.run(run_demo(partial(print, flush=True))) else 1


def _models(options: argparse.Namespace) -> int:
    from gateway.command_line.model_report import describe_sources

    settings = load_chosen_settings(options, os.environ)
    if options.name is not None:
        return _report_model(settings, options.name, asks=options.ask)
    print(describe_sources(settings))
    return 0


def _report_model(settings: Settings, model: str, *, asks: bool) -> int:
    from gateway.command_line.model_report import describe_model

    # What the book logs about an unknown model is in the report; what an upstream has answered is not.
    logging.basicConfig(level=logging.ERROR, format="%(message)s", stream=sys.stderr)
    logging.getLogger("gateway.discovery").setLevel(logging.INFO)
    report = asyncio.run(describe_model(settings, model, asks=asks))
    print(report.text)
    return 0 if report.is_known else 1


def _check(options: argparse.Namespace) -> int:
    settings = load_settings(Path(options.file), os.environ)
    # `serve` would refuse a valid store URL of a kind that this build does not support.
    open_store(settings.store)
    _warn(settings)
    print(render_summary(settings))
    return _report_model(settings, options.model, asks=False) if options.model is not None else 0


def _health(options: argparse.Namespace) -> int:
    ill_health = find_ill_health(options, os.environ)
    if ill_health is not None:
        print(f"gateway: {ill_health}", file=sys.stderr)
    return 0 if ill_health is None else 1


def _warn(settings: Settings) -> None:
    for problem in settings.warnings:
        print(f"warning: {problem}", file=sys.stderr)
    exposure = describe_exposure(settings)
    if exposure is not None:
        print(f"warning: {exposure}", file=sys.stderr)


async def _run(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT, then lets open requests finish. A second signal ends the program."""
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, signals.put_nowait, None)
    # Not imported for the other commands: a health check runs every few seconds.
    from gateway.app import start_gateway
    from gateway.command_line.start_screen import Places, render_start_screen

    _warn(settings)
    gateway = await start_gateway(settings)
    directory = find_directory(settings.store)
    places = Places(
        gateway.port,
        gateway.admin_port,
        gateway.windows,
        directory,
        program=_find_program(),
        logs_compactions=log.isEnabledFor(logging.INFO),
    )
    print(render_start_screen(settings, places), file=sys.stderr)
    tune_interpreter()
    collecting = loop.create_task(collect_garbage())
    try:
        await signals.get()
        log.info("draining")
        hurrying = loop.create_task(_hurry(signals, gateway))
    finally:
        await gateway.stop()
    hurrying.cancel()
    collecting.cancel()


async def _hurry(signals: "asyncio.Queue[None]", gateway: "Gateway") -> None:
    """After one more signal, what is queued is still written, but not for longer than a moment."""
    await signals.get()
    log.warning("stopping at once")
    # The system ends the process even if the event loop is busy.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, _HURRY_SECONDS)
    gateway.stop_draining()


def _find_program() -> str:
    """How this program was called, as it can be typed in the same folder."""
    path = Path(sys.argv[0])
    return shlex.quote(str(path)) if path.name == "gateway" else "python -m gateway"


_COMMANDS: Final = {
    "serve": _serve,
    "demo": _demo,
    "models": _models,
    "check": _check,
    "health": _health,
}


if __name__ == "__main__":
    sys.exit(main())
