"""The options of the commands that ask a running gateway: `conversations` and `top`."""

import argparse
from functools import partial
from typing import Final

from gateway.command_line.options.command import (
    CommandOptions,
    add_admin,
    add_commands,
    add_json,
    parse_count,
)

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


def _add_conversations(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, _ACTIONS, name="action")


def _add_top(parser: argparse.ArgumentParser) -> None:
    add_admin(parser)
    parser.add_argument("--once", action="store_true", help="print once and end")
    add_json(parser)


COMMANDS: Final = {
    "conversations": CommandOptions(
        "list, show, search, compact or delete conversations", _CONVERSATIONS, _add_conversations
    ),
    "top": CommandOptions("watch the conversations of a running gateway", _TOP, _add_top),
}
