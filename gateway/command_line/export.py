"""`refold export`: a conversation of a running gateway as a file."""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from gateway.command_line.admin_client import AdminClient, AdminError
from gateway.command_line.console import make_console
from gateway.command_line.conversation_commands import find_id
from gateway.command_line.options import load_chosen_settings


def run_export(options: argparse.Namespace, env: Mapping[str, str] = os.environ) -> int:
    """The exit status. Raises OSError for a file that cannot be written; it never replaces one."""
    settings = load_chosen_settings(options, env)
    try:
        with AdminClient(settings) as client:
            lines = client.read(f"/conversations/{find_id(client, options.id)}/export")
    except AdminError as error:
        make_console(is_error=True).print(Text(f"gateway: {error}"), soft_wrap=True)
        return 1
    if options.output is None:
        sys.stdout.write(lines.decode("utf-8", "replace"))
    else:
        _write_new(Path(options.output), lines)
    return 0


def _write_new(path: Path, lines: bytes) -> None:
    """Readable by its owner only: it holds what a conversation says."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(lines)
