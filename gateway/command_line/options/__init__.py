"""The options of each command, and the settings that they choose."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway import __version__
from gateway.command_line.options import doctor, operating, replay, running
from gateway.command_line.options.command import (
    CommandOptions,
    add_commands,
    add_config,
    add_json,
    add_log_level,
    add_settings,
    add_upstream,
    parse_given,
    parse_model,
)

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
_TENANTS: Final = """\
The tenants of a settings file. `refold tenants ACTION --help` has more.

exit status: 0, 1 if it was not deleted, 2 for wrong usage, settings or an
unknown tenant
"""
_PURGE: Final = """\
Deletes everything of one tenant: in the store, and in the memory of the
gateways that use it. First take its keys out of the settings and reload them:
requests that it sends later leave new records.
"""
_SCHEMA: Final = """\
With it an editor that knows YAML completes keys and explains them:

  refold schema > gateway.schema.json

and in the first line of the settings file:

  # yaml-language-server: $schema=gateway.schema.json
"""
_HEALTH: Final = """\
Give it the options that `refold serve` was started with, or its process.

exit status: 0 if it is well, 1 if not, 2 for wrong usage or settings
"""
_MODELS: Final = """\
With NAME: its window, where that comes from, and the thresholds of its policy;
of several, one after the other (with --json in a list, "models"). Without: the
sources of windows and what each holds. Nothing is sent, unless --ask is given.

exit status: 0, 1 if the window of a NAME is unknown, 2 for wrong usage or
settings
"""
_DEMO: Final = """\
Starts a stand-in for a model with a small window, a gateway in front of it, and
an agent that works through the gateway and then without it. The gateway's page
shows the session meanwhile; its address is printed. Uses free ports of
127.0.0.1, takes some seconds, and leaves nothing behind.

examples:
  refold demo
  refold demo --keep      then look at the page as long as you like

exit status: 0 if everything went as it should, otherwise 1
"""

_TYPO_SIMILARITY: Final = 0.5
# Each takes some hundred megabytes; a slip of the finger should not take the machine.
_MOST_WORKERS: Final = 1_000


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """None: those of this process. Ends the process with status 2 for wrong usage."""
    parser = argparse.ArgumentParser(
        prog="refold", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=__version__)
    parsers = add_commands(parser, _COMMANDS, name="command")
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


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    _add_running(parser)
    # For the supervisor alone, which starts its workers so.
    parser.add_argument("--as-worker", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--first-log", default="text:info", help=argparse.SUPPRESS)
    parser.add_argument("--link", type=int, default=None, help=argparse.SUPPRESS)


def _add_running(parser: argparse.ArgumentParser) -> None:
    """How it runs, which its settings do not say."""
    parser.add_argument(
        "--workers",
        metavar="N",
        type=_parse_workers,
        default=1,
        help="number of processes that share the port and the store; default: 1",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="reload the settings when their file changes, or a file that it names; SIGHUP does so, too",
    )
    add_log_level(parser)


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


def _add_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=parse_given, help="settings file (YAML)")
    parser.add_argument(
        "--model",
        metavar="NAME",
        type=parse_model,
        help="also say which window this model gets by the file",
    )
    add_json(parser)


def _add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="NAME", nargs="*", type=parse_model, help="a model, as clients name it"
    )
    add_config(parser)
    add_upstream(parser)
    parser.add_argument("--ask", action="store_true", help="ask the upstreams for their lists of models")
    add_json(parser)


def _add_tenants(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    listing = actions.add_parser("list", help="print the names in the settings")
    purging = actions.add_parser("purge", help="delete everything of one tenant", description=_PURGE)
    for action in (listing, purging):
        add_config(action)
        action.set_defaults(upstream=None)
    add_json(listing)
    purging.add_argument("name", metavar="NAME", help="a tenant, or key:HASH for a caller without a name")
    purging.add_argument("--removed", action="store_true", help="the settings do not name it any more")
    purging.add_argument("--yes", action="store_true", help="do not ask for the name again")
    purging.add_argument("--admin-port", metavar="N", type=int, help="as the gateway was started with")


def _add_health(parser: argparse.ArgumentParser) -> None:
    """It takes those of `serve` as they are. How the gateway runs does not matter to it."""
    add_settings(parser)
    _add_running(parser)
    parser.add_argument(
        "--of-process", metavar="ID", type=int, help="take the options from this process, a `refold serve`"
    )


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", action="store_true", help="keep the page open after the session, until Ctrl-C"
    )


def _add_nothing(_: argparse.ArgumentParser) -> None:
    """The command has no options."""


def _parse_workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"must be a number of processes, from 1 to {_MOST_WORKERS}")
    return int(text)


def _refuse_unknown_command(parser: argparse.ArgumentParser, given: Sequence[str]) -> None:
    """Ends the process with the nearest command, where argparse would only list all of them."""
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(2)
    if not given[0].startswith("-") and given[0] not in _COMMANDS:
        from gateway.settings.validate import find_nearest

        nearest = find_nearest(given[0], _COMMANDS, similarity=_TYPO_SIMILARITY)
        hint = f"; the nearest is '{nearest}'" if nearest else ""
        parser.error(f"there is no command {given[0][:40]!r}{hint}. Commands: {', '.join(_COMMANDS)}")


_COMMANDS: Final = {
    "serve": CommandOptions("run the gateway", _SERVE, _add_serve),
    **running.COMMANDS,
    "demo": CommandOptions("show a compaction, without a model and without a key", _DEMO, _add_demo),
    **doctor.COMMANDS,
    **replay.COMMANDS,
    "models": CommandOptions("say which window a model gets, and from which source", _MODELS, _add_models),
    "check": CommandOptions("check a settings file and say what it means", _CHECK, _add_check),
    **operating.COMMANDS,
    "tenants": CommandOptions(
        "list the tenants, or delete everything of one of them", _TENANTS, _add_tenants
    ),
    "schema": CommandOptions(
        "print the JSON schema of the settings file, for editors", _SCHEMA, _add_nothing
    ),
    "health": CommandOptions("ask a running gateway whether it is well", _HEALTH, _add_health),
}
