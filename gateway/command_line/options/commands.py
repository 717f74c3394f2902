"""The commands of `refold`: the help of each, and its options."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

# Each takes some hundred megabytes; a slip of the finger should not take the machine.
_MOST_WORKERS: Final = 1_000


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


LOG_LEVELS: Final = ("debug", "info", "warning", "error")
_UPSTREAM: Final = "base URL of the model API; replaces the upstreams of the file"


@dataclass(frozen=True)
class CommandOptions:
    """help: its line in the list of commands. description: of its own help. add: adds its options."""

    help: str
    description: str
    add: Callable[[argparse.ArgumentParser], object]


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


def _parse_workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"must be a number of processes, from 1 to {_MOST_WORKERS}")
    return int(text)


_RUN: Final = """\
Starts a gateway on a free port of 127.0.0.1, runs COMMAND so that it uses the
gateway, and ends with it. It knows how to point claude, codex, opencode, aider
and qwen at itself; any other command gets OPENAI_BASE_URL, OPENAI_API_BASE,
ANTHROPIC_BASE_URL and ANTHROPIC_API_BASE. No file of yours is changed. Where
the command would have gone without it is where the gateway goes, unless
--config, --upstream or GATEWAY_UPSTREAM names an upstream.

The log is a file beside the store (.gateway.log). At the end one line says what
was compacted and saved.

examples:
  refold run -- claude
  refold run --config gateway.yaml -- codex exec 'fix the tests'
  refold run --upstream http://127.0.0.1:8000/v1 -- python agent.py

exit status: 0 or what COMMAND exits with, 128 + n if signal n ended it, 127 if
there is no such command, 126 if it cannot be executed, 1 if the gateway cannot
start, 2 for wrong usage or settings
"""


def _add_run(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_upstream(parser)
    parser.add_argument(
        "--admin-port",
        metavar="N",
        type=int,
        default=0,
        help="port for operators (page, API, metrics); default: a free one, which the log names",
    )
    add_log_level(parser)
    parser.set_defaults(host="127.0.0.1", port=0)
    parser.add_argument("program", metavar="COMMAND", help="what is run, best behind --")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="of COMMAND")


_DOCTOR: Final = """\
Examines a set-up before it is used, or while it does not work: settings, store,
upstreams, windows of models, clock, ports and exposure. Each finding comes with
its fix. Give it the options of `refold serve`.

Nothing is billed: upstreams are asked for their lists of models only. With
--ask MODEL each upstream also gets one request of one word with a reply of one
token, streamed: it costs some 10 tokens of that model.

examples:
  refold doctor --config gateway.yaml
  refold doctor --config gateway.yaml --ask gpt-4o-mini
  refold doctor --json | jq '.findings[] | select(.level != "ok")'

exit status: 0 if all is well, 1 with warnings, 2 with problems (or wrong usage)
"""


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument(
        "--model",
        metavar="NAME",
        type=parse_model,
        action="append",
        default=[],
        dest="models",
        help="a model that clients use, to say whether its window is known; may be repeated",
    )
    parser.add_argument(
        "--ask",
        metavar="MODEL",
        type=parse_model,
        help="also send one streamed request to this model (billed)",
    )
    add_json(parser)


_REPLAY: Final = """\
Plays recorded sessions through the plan of a gateway, without a network: when
it would compact and prune, tokens and money with and without, and how much of
each prompt a provider's cache could reuse. Give several policies to see them
side by side, and choose thresholds before they are deployed.

FILE is a request log (OpenAI, Anthropic), a transcript with messages, a session
file of Claude Code or Codex, or what `refold export` has written. A folder
stands for the recordings below it.

examples:
  refold replay ~/.claude/projects --window 200000
  refold replay log.jsonl --policy adaptive --policy rolling --price gpt-4o
  refold replay session.json --config gateway.yaml --json

exit status: 0, 1 if nothing could be played, 2 for wrong usage or settings, or
a file that is no recording
"""
_EXPORT: Final = """\
Writes one conversation of a running gateway as a file for `refold replay`: its
newest body, the numbers of its requests, and its summaries. The gateway shows
texts on a loopback address without tenants, to those who have the admin.token,
or where the policy has show_texts: true, and logs that they were read.

examples:
  refold export 3f2a1b0c4d5e6f70 --output session.ndjson
  refold export 3f2a1b0c4d5e6f70 > session.ndjson

exit status: 0, 1 if the gateway does not answer, knows no such conversation or
refuses, 2 for wrong usage or settings
"""


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", type=_parse_id, help="as `refold conversations list` shows it")
    parser.add_argument("--output", metavar="FILE", help="a file that does not exist yet; default: stdout")
    add_admin(parser)


def _parse_id(text: str) -> str:
    """It becomes a part of a path. Raises ArgumentTypeError."""
    if not text or not set(text) <= set("0123456789abcdef"):
        raise argparse.ArgumentTypeError("the id of a conversation has the digits 0-9 and a-f only")
    return text


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="a recording, or a folder with recordings")
    parser.add_argument(
        "--policy",
        metavar="X",
        action="append",
        default=[],
        dest="policies",
        help="a policy of the settings or a preset; may be repeated; default: as configured",
    )
    parser.add_argument(
        "--window",
        metavar="N",
        type=parse_count,
        help="tokens of every model's window; default: as the settings and the bundled table say",
    )
    parser.add_argument(
        "--price",
        metavar="MODEL",
        type=parse_model,
        help="what this model costs; default: the models of the recordings. Its window holds for recordings "
        "without a model",
    )
    add_config(parser)
    add_json(parser)


_DEFAULT_LIMIT: Final = 50
_DEFAULT_FOUND: Final = 5
# As the admin API has it.
_MOST_FOUND: Final = 50
_CONVERSATIONS: Final = """\
The conversations of a running gateway, which it keeps the numbers of. An ID may
be shortened as long as it names one conversation.

examples:
  refold conversations list --model 'gpt-4o*' --limit 20
  refold conversations show 3f2a
  refold conversations search 3f2a 'retry of the upload'
  refold conversations show 3f2a --summary > session.md
  refold conversations compact 3f2a --instructions 'Keep all file names'
  refold conversations delete 3f2a

exit status: 0, 1 if the gateway does not answer, knows no such conversation,
refuses or finds nothing, 2 for wrong usage or settings
"""
_SHOW: Final = """\
Its numbers, its newest requests, and its summaries. The text of summaries is
shown with --texts, and what the session worked on with --summary, as Markdown:
title, files, commands, open to-dos, last summary. Both where the gateway allows
it: on a loopback address without tenants, to those who have the admin.token, or
where the policy has show_texts: true. The gateway logs that it was read.
"""
_SEARCH: Final = """\
Searches the messages that were summarized or pruned, and are not sent any more,
for words, paths or identifiers: the best pieces first. Like the texts of
summaries, they are shown where the gateway allows it, and it logs that they
were read.
"""
_COMPACT: Final = """\
Asks for a compaction: at once if the newest request is still in the gateway's
memory, otherwise when the next one comes.
"""
_DELETE: Final = """\
Deletes everything that the gateway keeps of it: summaries, originals, numbers.
A client that continues it begins a new conversation.
"""
_TOP: Final = """\
The conversations of a running gateway, live: tokens sent against the window,
compactions, and what was saved. `q` or Ctrl-C ends it.

examples:
  refold top
  refold top --once                 print it once, as a script may want it
  refold top --once --json | jq .totals

exit status: 0, 1 if the gateway does not answer, 2 for wrong usage or settings
"""


def _add_list(parser: argparse.ArgumentParser) -> None:
    add_admin(parser)
    parser.add_argument("--tenant", metavar="NAME", help="only those of this tenant")
    parser.add_argument("--model", metavar="NAME", help="only those with this model")
    parser.add_argument("--search", metavar="TEXT", help="only those with this in their id, label or names")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=parse_count,
        default=_DEFAULT_LIMIT,
        help=f"the newest N; default: {_DEFAULT_LIMIT}",
    )
    add_json(parser)


def _add_one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="of the conversation, or its first characters")
    add_admin(parser)


def _add_show(parser: argparse.ArgumentParser) -> None:
    _add_one(parser)
    parser.add_argument("--texts", action="store_true", help="with the texts of its summaries")
    parser.add_argument("--summary", action="store_true", help="what the session worked on, and nothing else")
    add_json(parser)


def _add_search(parser: argparse.ArgumentParser) -> None:
    _add_one(parser)
    parser.add_argument("query", metavar="QUERY", nargs="+", help="words, paths or identifiers")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=partial(parse_count, most=_MOST_FOUND),
        default=_DEFAULT_FOUND,
        help=f"the N best pieces, {_MOST_FOUND} at most; default: {_DEFAULT_FOUND}",
    )
    add_json(parser)


def _add_compact(parser: argparse.ArgumentParser) -> None:
    _add_one(parser)
    parser.add_argument("--instructions", metavar="TEXT", help="what the summary should keep, in your words")
    add_json(parser)


def _add_delete(parser: argparse.ArgumentParser) -> None:
    _add_one(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json(parser)


_ACTIONS: Final = {
    "list": CommandOptions("list them, the newest first", "The newest first.", _add_list),
    "show": CommandOptions("show one with its requests and summaries", _SHOW, _add_show),
    "search": CommandOptions("search what one does not send any more", _SEARCH, _add_search),
    "compact": CommandOptions("ask for a compaction of one", _COMPACT, _add_compact),
    "delete": CommandOptions("delete one with everything it left", _DELETE, _add_delete),
}


def _add_top(parser: argparse.ArgumentParser) -> None:
    add_admin(parser)
    parser.add_argument("--once", action="store_true", help="print once and end")
    add_json(parser)


COMMANDS: Final = {
    "serve": CommandOptions("run the gateway", _SERVE, _add_serve),
    "run": CommandOptions("run a command with a gateway of its own", _RUN, _add_run),
    "demo": CommandOptions("show a compaction, without a model and without a key", _DEMO, _add_demo),
    "doctor": CommandOptions("examine a set-up and name the fixes", _DOCTOR, _add_doctor),
    "replay": CommandOptions("try policies on recorded sessions, without a network", _REPLAY, _add_replay),
    "export": CommandOptions("write a conversation as a file for replay", _EXPORT, _add_export),
    "models": CommandOptions("say which window a model gets, and from which source", _MODELS, _add_models),
    "check": CommandOptions("check a settings file and say what it means", _CHECK, _add_check),
    "conversations": CommandOptions(
        "list, show, search, compact or delete conversations",
        _CONVERSATIONS,
        partial(add_commands, commands=_ACTIONS, name="action"),
    ),
    "top": CommandOptions("watch the conversations of a running gateway", _TOP, _add_top),
    "tenants": CommandOptions(
        "list the tenants, or delete everything of one of them", _TENANTS, _add_tenants
    ),
    "schema": CommandOptions(
        "print the JSON schema of the settings file, for editors", _SCHEMA, lambda _: None
    ),
    "health": CommandOptions("ask a running gateway whether it is well", _HEALTH, _add_health),
}
