"""The command line: `gateway serve` and `gateway check`."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway import __version__
from gateway.app import start_gateway
from gateway.settings import Settings, SettingsError, load_settings, render_summary
from gateway.store import StoreError, open_store

_DESCRIPTION = "A proxy for LLM APIs that compacts conversations before their context window is full."


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 for success, 1 if the gateway cannot serve, 2 for wrong usage or settings."""
    options = _parse_arguments(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    if options.command == "serve" and options.workers != 1:
        print(
            "gateway: several --workers need a shared store, which this version does not have",
            file=sys.stderr,
        )
        return 2
    try:
        if options.command == "check":
            return _check(Path(options.file))
        settings = load_settings(
            Path(options.config) if options.config else None,
            os.environ,
            upstream=options.upstream,
            host=options.host,
            port=options.port,
        )
        print(render_summary(settings), file=sys.stderr)
        return _run(settings)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    except (StoreError, OSError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1


def _parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gateway", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run the gateway")
    serve.add_argument("--config", metavar="FILE", help="settings file (YAML); optional")
    serve.add_argument(
        "--upstream", metavar="URL", help="base URL of the model API; replaces the upstreams of the file"
    )
    serve.add_argument("--host", metavar="HOST", help="address to listen on; default: 127.0.0.1")
    serve.add_argument("--port", metavar="N", type=int, help="port to listen on; default: 8080")
    serve.add_argument(
        "--workers", metavar="N", type=int, default=1, help="number of processes; this version supports 1"
    )
    check = commands.add_parser("check", help="check a settings file and print a summary")
    check.add_argument("file", metavar="FILE", help="settings file (YAML)")
    return parser.parse_args(arguments)


def _check(path: Path) -> int:
    settings = load_settings(path, os.environ)
    # `serve` would refuse a valid store URL of a kind that this build does not support.
    open_store(settings.store)
    print(render_summary(settings))
    return 0


def _run(settings: Settings) -> int:
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(settings))
    else:
        uvloop.run(_serve(settings))
    return 0


async def _serve(settings: Settings) -> None:
    """Runs until SIGTERM or SIGINT, then lets open requests finish."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.set)
    gateway = await start_gateway(settings)
    _tune_garbage_collector()
    try:
        await stopping.wait()
        logging.getLogger("gateway").info("draining")
    finally:
        await gateway.stop()


def _tune_garbage_collector() -> None:
    """Caches hold some hundred thousand long-lived objects. With the default thresholds, scanning them again
    and again takes a tenth of the time (DECISIONS.md, app).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)


if __name__ == "__main__":
    sys.exit(main())
