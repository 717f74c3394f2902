"""What commands print: tables and colour for a person, plain text in a pipe, one JSON value for a program."""

import os
import sys
from collections.abc import Mapping
from typing import Final

import msgspec
from rich.console import Console

# Without a terminal there is no width to ask for.
_PIPED_COLUMNS: Final = 80


def make_console(*, is_error: bool = False, env: Mapping[str, str] = os.environ) -> Console:
    """As wide as the terminal, with colour unless `NO_COLOR` is set; in a pipe of 80 columns without colour.

    Texts from elsewhere are never read as markup: write them as `rich.text.Text`.
    """
    stream = sys.stderr if is_error else sys.stdout
    is_terminal = stream is not None and stream.isatty()
    width = None if is_terminal or "COLUMNS" in env else _PIPED_COLUMNS
    return Console(
        stderr=is_error,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=is_terminal,
        no_color=not is_terminal or bool(env.get("NO_COLOR")),
    )


def render_json(value: object) -> str:
    """One JSON value, indented, of anything that msgspec encodes. Without a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def make_printable(text: str) -> str:
    """Text from clients or upstreams, without control characters that a terminal would obey."""
    return "".join(character if character.isprintable() else "�" for character in text)
