"""The options of each command, and the settings that they choose."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gateway import __version__
from gateway.settings import Settings, load_settings
from gateway.settings.violations import find_nearest

LOG_LEVELS: Final = ("debug", "info", "warning", "error")

_DESCRIPTION: Final = """\
A proxy for LLM APIs that compacts conversations before their context window
is full.

first steps:
  gateway demo          see a compaction, without a model and without a key
  gateway serve         then set a client's base_url: http://127.0.0.1:8080/v1
  gateway models NAME   which window a model has, and when it is compacted
"""
_SERVE: Final = """\
Without --config and --upstream, chat and responses go to
https://api.openai.com/v1, messages to https://api.anthropic.com/v1, with the
caller's own key.

environment: GATEWAY_UPSTREAM, GATEWAY_ADMIN_HOST, GATEWAY_ADMIN_TOKEN,
GATEWAY_DISABLE_AUTOCOMPACT, GATEWAY_DISABLE_PRUNE

exit status: 0 after SIGTERM or Ctrl-C, 1 if it cannot serve, 2 for wrong usage
or settings
"""
_CHECK: Final = """\
Names each mistake with its line, warns of what is hardly meant, and says what
the file means. Nothing is started and nothing is asked.

exit status: 0 if the file is valid, 1 if the window of --model is unknown,
2 for a mistake
"""
_HEALTH: Final = """\
Give it the options that `gateway serve` was started with, or its process.

exit status: 0 if it is well, 1 if not, 2 for wrong usage or settings
"""
_MODELS: Final = """\
With NAME: its window, where that comes from, and the thresholds of its policy.
Without: the sources of windows and what each holds. Nothing is sent, unless
--ask is given.

exit status: 0, 1 if the window of NAME is unknown, 2 for wrong usage or
settings
"""
_DEMO: Final = """\
Starts a stand-in for a model with a small window, a gateway in front of it, and
an agent that works through the gateway and then without it. Uses free ports of
127.0.0.1, takes some seconds, and leaves nothing behind.

exit status: 0 if everything went as it should, otherwise 1
"""

_TYPO_SIMILARITY: Final = 0.5
_UPSTREAM_HELP: Final = "base URL of the model API; replaces the upstreams of the file"
# Each with its line in the list of commands, and the text of its own help.
_COMMANDS: Final = {
    "serve": ("run the gateway", _SERVE),
    "demo": ("show a compaction, without a model and without a key", _DEMO),
    "models": ("say which window a model gets, and from which source", _MODELS),
    "check": ("check a settings file and say what it means", _CHECK),
    "health": ("ask a running gateway whether it is well", _HEALTH),
}


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """None: those of this process. Ends the process with status 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="gateway", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    parsers = {
        name: commands.add_parser(
            name,
            help=help_text,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for name, (help_text, description) in _COMMANDS.items()
    }
    _add_serve(parsers["serve"])
    _add_check(parsers["check"])
    _add_models(parsers["models"])
    _add_health(parsers["health"])
    given = list(sys.argv[1:] if arguments is None else arguments)
    _refuse_unknown_command(parser, given)
    options = parser.parse_args(given)
    if options.command == "models" and options.ask and options.name is None:
        parsers["models"].error("--ask needs the NAME of a model")
    return options


def load_chosen_settings(options: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Those that the options of a command choose. Raises SettingsError."""
    return load_settings(
        Path(options.config) if options.config else None,
        env,
        upstream=options.upstream,
        host=getattr(options, "host", None),
        port=getattr(options, "port", None),
        admin_port=getattr(options, "admin_port", None),
    )


def _add_serve(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser)
    parser.add_argument(
        "--workers", metavar="N", type=int, default=1, help="number of processes; this version supports 1"
    )
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        choices=LOG_LEVELS,
        default="info",
        help="debug, info, warning or error; debug has a line for each request; default: info",
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="settings file (YAML)")
    parser.add_argument(
        "--model",
        metavar="NAME",
        type=_parse_model,
        help="also say which window this model gets by the file",
    )


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="NAME", nargs="?", type=_parse_model, help="a model, as clients name it"
    )
    parser.add_argument("--config", metavar="FILE", help="settings file (YAML); optional")
    parser.add_argument("--upstream", metavar="URL", help=_UPSTREAM_HELP)
    parser.add_argument("--ask", action="store_true", help="ask the upstreams for their lists of models")


def _add_health(parser: argparse.ArgumentParser) -> None:
    _add_settings(parser)
    parser.add_argument(
        "--of-process", metavar="ID", type=int, help="take the options from this process, a `gateway serve`"
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="settings file (YAML); optional")
    parser.add_argument("--upstream", metavar="URL", help=_UPSTREAM_HELP)
    parser.add_argument("--host", metavar="HOST", help="address to listen on; default: 127.0.0.1")
    parser.add_argument("--port", metavar="N", type=int, help="port to listen on; default: 8080")
    parser.add_argument(
        "--admin-port", metavar="N", type=int, help="port for operators (metrics, events); default: 8081"
    )


def _parse_model(name: str) -> str:
    if not name or not name.isprintable():
        raise argparse.ArgumentTypeError(
            "the name of a model has printable characters only, and at least one"
        )
    return name


def _refuse_unknown_command(parser: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Ends the process with the nearest command, where argparse would only list all of them."""
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if not given[0].startswith("-") and given[0] not in _COMMANDS:
        nearest = find_nearest(given[0], _COMMANDS, similarity=_TYPO_SIMILARITY)
        hint = f"; the nearest is '{nearest}'" if nearest else ""
        parser.error(f"there is no command {given[0][:40]!r}{hint}. Commands: {', '.join(_COMMANDS)}")
