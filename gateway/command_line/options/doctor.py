"""The options of `refold doctor`."""

import argparse
from typing import Final

from gateway.command_line.options.command import CommandOptions, add_json, add_settings, parse_model

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


COMMANDS: Final = {"doctor": CommandOptions("examine a set-up and name the fixes", _DOCTOR, _add_doctor)}
