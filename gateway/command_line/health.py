"""Asks a running gateway for `/healthz`, at the address that its own options name.

For the health check of a container, which cannot know with which options the gateway was started, and which
runs every few seconds: so nothing of the gateway itself is imported.
"""

import argparse
import http.client
import ipaddress
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.command_line.options import load_chosen_settings, parse_arguments
from gateway.settings import Problem, SettingsError

_TIMEOUT_SECONDS: Final = 2.0


def run_health(options: argparse.Namespace) -> int:
    """The exit status. Raises SettingsError."""
    ill_health = _find_ill_health(options, os.environ)
    if ill_health is not None:
        print(f"gateway: {ill_health}", file=sys.stderr)
    return 0 if ill_health is None else 1


def _find_ill_health(options: argparse.Namespace, env: Mapping[str, str]) -> str | None:
    """Why the gateway is not well, in one line; None if it is. Raises SettingsError."""
    try:
        if options.of_process is not None:
            options = _read_options(options.of_process)
        listen = load_chosen_settings(options, env).listen
    except OSError as error:
        return f"process {options.of_process} cannot be read: {error.strerror}"
    if not listen.port:
        return "the port is 0, so the gateway chose one that only its log names"
    host = choose_loopback(listen.host)
    return _ask(host, listen.port)


def _ask(host: str, port: int) -> str | None:
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"no response from {host} port {port}: {error or type(error).__name__}"
    finally:
        connection.close()
    return None if status == http.client.OK else f"{host} port {port} responds with status {status}"


def choose_loopback(host: str) -> str:
    """For a server that listens on all addresses, this machine's loopback address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "::1" if address.version == 6 else "127.0.0.1"


def show_host(host: str) -> str:
    """One that a client on this machine can use, as in a URL."""
    reached = choose_loopback(host)
    return f"[{reached}]" if ":" in reached else reached


def _read_options(process_id: int) -> argparse.Namespace:
    """Those behind `serve` in the command line of a process, which may be an init that started the gateway.

    Raises OSError, or SettingsError for a process that is no gateway.
    """
    folder = Path("/proc") / str(process_id)
    words = [os.fsdecode(word) for word in (folder / "cmdline").read_bytes().split(b"\0")][:-1]
    if "serve" not in words:
        raise SettingsError([Problem(f"process {process_id}", "is not a `refold serve`")])
    options = parse_arguments(words[words.index("serve") :])
    if options.config:
        options.config = str(folder / "cwd" / options.config)
    options.of_process = process_id
    return options
