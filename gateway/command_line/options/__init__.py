"""The options of each command, and the settings that they choose."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway import __version__
from gateway.command_line.options.commands import COMMANDS, add_commands

if TYPE_CHECKING:
    from gateway.settings import Log, Settings, SettingsFile

_DESCRIPTION: Final = """\
A proxy for LLM APIs that compacts conversations before their context window
is full.

first steps:
  refold demo          see a compaction, without a model and without a key
  refold run -- CMD    an agent with a gateway of its own: claude, codex, aider …
  refold serve         then set a client's base_url: http://127.0.0.1:8080/v1
  refold models NAME   which window a model has, and when it is compacted
  refold doctor        what is wrong with a set-up, and how to mend it
  refold top           what conversations do, live
"""
_TYPO_SIMILARITY: Final = 0.5


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """None: those of this process. Ends the process with status 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="refold", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=__version__)
    parsers = add_commands(parser, COMMANDS, name="command")
    given = list(sys.argv[1:] if arguments is None else arguments)
    _refuse_unknown_command(parser, given)
    options = parser.parse_args(given)
    if options.command == "serve" and options.watch and not options.config:
        parsers["serve"].error("--watch needs the --config FILE that it is to watch")
    if options.command == "models" and options.ask and not options.names:
        parsers["models"].error("--ask needs the NAME of a model")
    return options


def read_chosen_file(options: argparse.Namespace) -> "SettingsFile | None":
    """None without one. Raises SettingsError."""
    from gateway.settings import read_settings_file

    return read_settings_file(Path(options.config)) if options.config else None


def load_chosen_settings(
    options: argparse.Namespace, env: Mapping[str, str], file: "SettingsFile | None" = None
) -> "Settings":
    """Those that the options of a command choose. file: None to read the one that they name.

    Raises SettingsError.
    """
    from gateway.settings import Log, load_settings

    settings = load_settings(
        file or read_chosen_file(options),
        env,
        upstream=options.upstream,
        host=getattr(options, "host", None),
        port=getattr(options, "port", None),
        admin_port=getattr(options, "admin_port", None),
    )
    level = getattr(options, "log_level", None)
    if level is None:
        return settings
    return replace(settings, log=Log(format=settings.log.format, level=level))


class SettingsSource:
    """The settings of a running gateway, which may be loaded again.

    file: that of the last load, as it was read. Workers get this text, because the file may change meanwhile.
    """

    def __init__(self, options: argparse.Namespace, env: Mapping[str, str]) -> None:
        self._options = options
        self._env = env
        self.file: SettingsFile | None = None

    def load(self) -> "Settings":
        """Raises SettingsError."""
        file = read_chosen_file(self._options)
        settings = load_chosen_settings(self._options, self._env, file)
        self.file = file
        return settings


def render_worker_arguments(options: argparse.Namespace, log: "Log") -> list[str]:
    """The options of a `serve` as its workers get them. They hold no secrets: the settings do not.

    log: how a worker writes until it has the settings.
    """
    named = {
        "--config": options.config,
        "--upstream": options.upstream,
        "--host": options.host,
        "--port": options.port,
        "--admin-port": options.admin_port,
        "--log-level": options.log_level,
        "--first-log": f"{log.format}:{log.level}",
    }
    given = [(name, str(value)) for name, value in named.items() if value is not None]
    return ["serve", *(word for pair in given for word in pair)]


def parse_first_log(text: str) -> "Log":
    """How a worker writes until it has the settings."""
    from gateway.settings import Log
    from gateway.settings.files import Document
    from gateway.settings.validate import validate

    form, _, level = text.partition(":")
    return validate(Log, Document({"format": form, "level": level}, {}))


def name_worker(options: argparse.Namespace) -> str:
    """The name of this worker in log lines."""
    return f"worker-{options.as_worker}"


def _refuse_unknown_command(parser: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Ends the process with the nearest command, where argparse would only list all of them."""
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if not given[0].startswith("-") and given[0] not in COMMANDS:
        from gateway.settings.validate import find_nearest

        nearest = find_nearest(given[0], COMMANDS, similarity=_TYPO_SIMILARITY)
        hint = f"; the nearest is '{nearest}'" if nearest else ""
        parser.error(f"there is no command {given[0][:40]!r}{hint}. Commands: {', '.join(COMMANDS)}")
