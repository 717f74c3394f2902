"""The options of each command, and the settings that they choose."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway import __version__
from gateway.settings import Settings, load_settings

_DESCRIPTION: Final = "A proxy for LLM APIs that compacts conversations before their context window is full."
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """None: those of this process. Ends the process with status 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="gateway", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run the gateway")
    _add_settings(serve)
    serve.add_argument(
        "--workers", metavar="N", type=int, default=1, help="number of processes; this version supports 1"
    )
    serve.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        help="debug has a line for each request; default: info",
    )
    check = commands.add_parser("check", help="check a settings file and print a summary")
    check.add_argument("file", metavar="FILE", help="settings file (YAML)")
    health = commands.add_parser(
        "health", help="ask a running gateway for its health; status 0 if it is well"
    )
    _add_settings(health)
    health.add_argument(
        "--of-process", metavar="ID", type=int, help="take the options from this process, a `gateway serve`"
    )
    return parser.parse_args(arguments)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="settings file (YAML); optional")
    parser.add_argument(
        "--upstream", metavar="URL", help="base URL of the model API; replaces the upstreams of the file"
    )
    parser.add_argument("--host", metavar="HOST", help="address to listen on; default: 127.0.0.1")
    parser.add_argument("--port", metavar="N", type=int, help="port to listen on; default: 8080")
    parser.add_argument(
        "--admin-port", metavar="N", type=int, help="port for operators (metrics, events); default: 8081"
    )


def load_chosen_settings(options: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """For `serve` and `health`. Raises SettingsError."""
    return load_settings(
        Path(options.config) if options.config else None,
        env,
        upstream=options.upstream,
        host=options.host,
        port=options.port,
        admin_port=options.admin_port,
    )
