"""The options of `refold replay` and `refold export`."""

import argparse
from typing import Final

from gateway.command_line.options.command import (
    CommandOptions,
    add_admin,
    add_config,
    add_json,
    parse_count,
    parse_model,
)

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


COMMANDS: Final = {
    "replay": CommandOptions("try policies on recorded sessions, without a network", _REPLAY, _add_replay),
    "export": CommandOptions("write a conversation as a file for replay", _EXPORT, _add_export),
}
