"""One command as the command line shows it, and the options that several commands share."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_UPSTREAM: Final = "base URL of the model API; replaces the upstreams of the file"


@dataclass(frozen=True)
class CommandOptions:
    """help: its line in the list of commands. description: of its own help. add: adds its options."""

    help: str
    description: str
    add: Callable[[argparse.ArgumentParser], None]


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=parse_given, help="settings file (YAML); optional")


def add_upstream(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--upstream", metavar="URL", type=parse_given, help=_UPSTREAM)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Those that choose the settings of a gateway, as `serve` has them."""
    add_config(parser)
    add_upstream(parser)
    parser.add_argument("--host", metavar="HOST", help="address to listen on; default: 127.0.0.1")
    parser.add_argument("--port", metavar="N", type=int, help="port to listen on; default: 8080")
    parser.add_argument(
        "--admin-port", metavar="N", type=int, help="port for operators (page, API, metrics); default: 8081"
    )


def add_log_level(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        choices=LOG_LEVELS,
        help="debug, info, warning or error; debug has a line for each request; default: the settings'",
    )


def add_admin(parser: argparse.ArgumentParser) -> None:
    """Those that name the admin port of a running gateway."""
    add_config(parser)
    parser.add_argument("--admin-port", metavar="N", type=int, help="as the gateway was started with")
    parser.set_defaults(upstream=None)


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON value, for programs")


def add_commands(
    parser: argparse.ArgumentParser, commands: dict[str, CommandOptions], *, name: str
) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands, by name. name: of the attribute that says which was chosen."""
    adding = parser.add_subparsers(dest=name, metavar=name.upper(), required=True, title=f"{name}s")
    made = {}
    for word, command in commands.items():
        made[word] = adding.add_parser(
            word,
            help=command.help,
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add(made[word])
    return made


def parse_given(text: str) -> str:
    """Raises ArgumentTypeError for the empty text that an unset variable of a shell leaves: it would mean the
    built-in settings, which somebody who names a file or an upstream does not want.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty: is a variable unset?")
    return text


def parse_model(name: str) -> str:
    """Raises ArgumentTypeError for a name that cannot be shown."""
    if not name or not name.isprintable():
        raise argparse.ArgumentTypeError(
            "the name of a model has printable characters only, and at least one"
        )
    return name


def parse_count(text: str, most: int | None = None) -> int:
    """Raises ArgumentTypeError for anything but a number above 0, and up to `most`."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError("must be a number above 0")
    if most is not None and int(text) > most:
        raise argparse.ArgumentTypeError(f"must be {most} at most")
    return int(text)
