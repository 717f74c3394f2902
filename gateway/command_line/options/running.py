"""The options of `refold run`."""

import argparse
from typing import Final

from gateway.command_line.options.command import (
    CommandOptions,
    add_config,
    add_log_level,
    add_upstream,
)

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


COMMANDS: Final = {"run": CommandOptions("run a command with a gateway of its own", _RUN, _add_run)}
