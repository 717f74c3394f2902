"""The command line: `gateway serve`, `gateway check` and `gateway health`."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.bounds.allocator import return_freed_memory
from gateway.bounds.descriptors import raise_limit
from gateway.bounds.interpreter import collect_garbage, tune_interpreter
from gateway.command_line.health import find_ill_health
from gateway.command_line.options import load_chosen_settings, parse_arguments
from gateway.settings import (
    Places,
    Settings,
    SettingsError,
    describe_exposure,
    load_settings,
    render_start_screen,
    render_summary,
)
from gateway.store import StoreError, find_directory, open_store

if TYPE_CHECKING:
    from gateway.app import Gateway

log = logging.getLogger("gateway")

# Time to write what is queued after a second signal.
_HURRY_SECONDS: Final = 0.7


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 for success, 1 if the gateway cannot serve or is not well, 2 for wrong usage or
    settings.
    """
    options = parse_arguments(arguments)
    if options.command == "serve" and options.workers != 1:
        print(
            "gateway: several --workers need a shared store, which this version does not have",
            file=sys.stderr,
        )
        return 2
    try:
        if options.command == "check":
            return _check(Path(options.file))
        if options.command == "health":
            return _report(find_ill_health(options, os.environ))
        settings = load_chosen_settings(options, os.environ)
        _set_up_logging(options.log_level)
        raise_limit()
        return _run(settings)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    except (StoreError, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1


def _set_up_logging(level: str) -> None:
    """For the gateway's own loggers: at `debug`, libraries log headers, and so keys."""
    logging.basicConfig(
        level=max(logging.INFO, logging.getLevelNamesMapping()[level.upper()]),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("gateway").setLevel(level.upper())
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def _report(ill_health: str | None) -> int:
    if ill_health is not None:
        print(f"gateway: {ill_health}", file=sys.stderr)
    return 0 if ill_health is None else 1


def _check(path: Path) -> int:
    settings = load_settings(path, os.environ)
    # `serve` would refuse a valid store URL of a kind that this build does not support.
    open_store(settings.store)
    _warn(settings)
    print(render_summary(settings))
    return 0


def _warn(settings: Settings) -> None:
    for problem in settings.warnings:
        print(f"warning: {problem}", file=sys.stderr)
    exposure = describe_exposure(settings)
    if exposure is not None:
        print(f"warning: {exposure}", file=sys.stderr)


def _run(settings: Settings) -> int:
    return_freed_memory()
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(settings))
    else:
        uvloop.run(_serve(settings))
    return 0


async def _serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT, then lets open requests finish. A second signal ends the program."""
    signals: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, signals.put_nowait, None)
    # Not imported for the other commands: a health check runs every few seconds.
    from gateway.app import start_gateway

    _warn(settings)
    gateway = await start_gateway(settings)
    places = Places(gateway.port, gateway.admin_port, gateway.windows, find_directory(settings.store))
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


if __name__ == "__main__":
    sys.exit(main())
