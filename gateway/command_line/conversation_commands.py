"""`refold conversations`: lists, shows, searches, compacts and deletes those of a running gateway."""

import argparse
import fnmatch
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.text import Text

from gateway.activity.rows import Row
from gateway.admin.answers import (
    CompactionBegun,
    ConversationList,
    ConversationPage,
    Deletion,
    FoundPart,
    RequestList,
    SearchPage,
    SessionPage,
    SummaryList,
)
from gateway.admin.session_markdown import render_markdown
from gateway.command_line.admin_client import AdminClient, AdminError
from gateway.command_line.console import make_console, make_printable, render_json
from gateway.command_line.conversation_report import ShownConversation, make_table, show_conversation
from gateway.command_line.figures import show_ago
from gateway.command_line.options import load_chosen_settings
from gateway.command_line.tenant_commands import ask_person

_PAGE: Final = 500
_WILDCARDS: Final = frozenset("*?[")
_SHOWN_MATCHES: Final = 5


def run_conversations(options: argparse.Namespace) -> int:
    """The exit status; 1 also for a search that finds nothing, as that of `grep`. Raises SettingsError and
    AdminError.
    """
    with AdminClient(load_chosen_settings(options, os.environ)) as client:
        answer = _ACTIONS[options.action](client, options)
    if options.json:
        print(render_json(answer))
    else:
        _print(make_console(), answer, options)
    return 1 if isinstance(answer, SearchPage) and not answer.found else 0


def list_rows(client: AdminClient, options: argparse.Namespace) -> list[Row]:
    """Those that the filters choose, the newest first."""
    rows: list[Row] = []
    for row in _read_pages(client, options):
        if options.model is None or fnmatch.fnmatchcase(row.model, options.model):
            rows.append(row)
        if len(rows) == options.limit:
            break
    return rows


def find_id(client: AdminClient, beginning: str) -> str:
    """The id that begins so. Raises AdminError if none does, or several."""
    options = argparse.Namespace(tenant=None, model=None, search=beginning, limit=_PAGE)
    found = [row.id for row in list_rows(client, options) if row.id.startswith(beginning)]
    if beginning in found or len(found) == 1:
        return beginning if beginning in found else found[0]
    shown = make_printable(beginning[:64])
    if not found:
        raise AdminError(f"no conversation has an id that begins with {shown}: see refold conversations list")
    some = ", ".join(identity[: len(beginning) + 6] for identity in found[:_SHOWN_MATCHES])
    raise AdminError(f"{len(found)} conversations have ids that begin with {shown}: {some}")


def _read_pages(client: AdminClient, options: argparse.Namespace) -> Iterator[Row]:
    is_exact = options.model is not None and not _WILDCARDS & set(options.model)
    filters = {"tenant": options.tenant, "q": options.search, "model": options.model if is_exact else None}
    query: dict[str, str | int] = {name: value for name, value in filters.items() if value is not None}
    query["limit"] = _PAGE if options.model else min(options.limit, _PAGE)
    while True:
        page = client.get("/conversations", ConversationList, query)
        yield from page.conversations
        if page.next is None:
            return
        query["cursor"] = page.next


# What is asked of the gateway.


def _list(client: AdminClient, options: argparse.Namespace) -> dict[str, list[Row]]:
    return {"conversations": list_rows(client, options)}


def _show(client: AdminClient, options: argparse.Namespace) -> SessionPage | ShownConversation:
    path = f"/conversations/{find_id(client, options.id)}"
    if options.summary:
        return client.get(f"{path}/summary", SessionPage)
    summaries = client.get(f"{path}/summaries", SummaryList).summaries
    if not options.texts:
        summaries = [msgspec.structs.replace(each, text=None, versions=[]) for each in summaries]
    return ShownConversation(
        conversation=client.get(path, ConversationPage),
        requests=client.get(f"{path}/requests", RequestList).requests,
        summaries=summaries,
    )


def _search(client: AdminClient, options: argparse.Namespace) -> SearchPage:
    query: dict[str, str | int] = {"q": " ".join(options.query), "limit": options.limit}
    return client.get(f"/conversations/{find_id(client, options.id)}/search", SearchPage, query)


def _compact(client: AdminClient, options: argparse.Namespace) -> CompactionBegun:
    body = {"instructions": options.instructions} if options.instructions else {}
    return client.post(f"/conversations/{find_id(client, options.id)}/compact", CompactionBegun, body)


def _delete(client: AdminClient, options: argparse.Namespace) -> Deletion:
    identity = find_id(client, options.id)
    question = f"Delete everything that the gateway keeps of {identity}? Type yes to go on: "
    if not options.yes and ask_person(question).strip().lower() not in ("y", "yes"):
        raise AdminError("nothing was deleted")
    return client.delete(f"/conversations/{identity}", Deletion)


_ACTIONS: Final[Mapping[str, Callable[[AdminClient, argparse.Namespace], object]]] = {
    "list": _list,
    "show": _show,
    "search": _search,
    "compact": _compact,
    "delete": _delete,
}


# What a person sees of it.


def _print(console: Console, answer: object, options: argparse.Namespace) -> None:
    match answer:
        case {"conversations": []}:
            console.print(Text("no conversations: nothing was answered yet, or the filters fit none"))
        case {"conversations": rows}:
            console.print(make_table(rows, console.width))
        case ShownConversation():
            show_conversation(console, answer, with_texts=options.texts)
        case SessionPage():
            print("\n".join(map(make_printable, render_markdown(answer).splitlines())))
        case SearchPage():
            _show_found(console, answer)
        case CompactionBegun():
            console.print(Text(f"{answer.id}: compaction begins {answer.begins}"), soft_wrap=True)
        case Deletion():
            counts = msgspec.structs.asdict(answer.deleted)
            numbers = ", ".join(f"{name}: {number}" for name, number in counts.items())
            console.print(Text(f"{answer.id}: deleted; records: {numbers}"), soft_wrap=True)


def _show_found(console: Console, page: SearchPage) -> None:
    """Each piece with the place it is from."""
    if not page.found:
        console.print(Text("nothing found in the messages that were summarized or pruned"), soft_wrap=True)
    for number, part in enumerate(page.found):
        console.print(Text(("\n" if number else "") + _describe(page, part), "bold"), soft_wrap=True)
        console.print(Text("\n".join(map(make_printable, part.text.splitlines()))))


def _describe(page: SearchPage, part: FoundPart) -> str:
    elsewhere = f" of {part.conversation}" if part.conversation != page.id else ""
    details = [make_printable(each) for each in (part.role, part.tool, part.path) if each]
    return (
        f"message {part.position}{elsewhere}: {', '.join(details)}; "
        f"characters {part.start:,} to {part.end:,}; taken out {show_ago(part.when)} ago"
    )


def run_export(options: argparse.Namespace) -> int:
    """`refold export`. The exit status. Raises SettingsError, AdminError, and OSError for a file that cannot
    be written; it never replaces one.
    """
    with AdminClient(load_chosen_settings(options, os.environ)) as client:
        lines = client.read(f"/conversations/{find_id(client, options.id)}/export")
    if options.output is None:
        sys.stdout.write(lines.decode("utf-8", "replace"))
    else:
        _write_new(Path(options.output), lines)
    return 0


def _write_new(path: Path, lines: bytes) -> None:
    """Readable by its owner only: it holds what a conversation says."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(lines)
