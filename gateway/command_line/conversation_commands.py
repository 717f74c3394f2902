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
    SummaryRow,
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
    """The exit status. Raises SettingsError and AdminError."""
    with AdminClient(load_chosen_settings(options, os.environ)) as client:
        return _ACTIONS[options.action](client, options)


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


def _list(client: AdminClient, options: argparse.Namespace) -> int:
    rows = list_rows(client, options)
    if options.json:
        _write({"conversations": rows})
        return 0
    console = make_console()
    if rows:
        console.print(make_table(rows, console.width))
    else:
        console.print(Text("no conversations: nothing was answered yet, or the filters fit none"))
    return 0


def _show(client: AdminClient, options: argparse.Namespace) -> int:
    path = f"/conversations/{find_id(client, options.id)}"
    if options.summary:
        return _show_session(client, path, is_json=options.json)
    shown = ShownConversation(
        conversation=client.get(path, ConversationPage),
        requests=client.get(f"{path}/requests", RequestList).requests,
        summaries=_load_summaries(client, path, with_texts=options.texts),
    )
    if options.json:
        _write(shown)
    else:
        show_conversation(make_console(), shown, with_texts=options.texts)
    return 0


def _show_session(client: AdminClient, path: str, *, is_json: bool) -> int:
    page = client.get(f"{path}/summary", SessionPage)
    if is_json:
        _write(page)
    else:
        lines = render_markdown(page).splitlines()
        sys.stdout.write("".join(f"{make_printable(line)}\n" for line in lines))
    return 0


def _load_summaries(client: AdminClient, path: str, *, with_texts: bool) -> list[SummaryRow]:
    """Without their texts unless these are wanted."""
    found = client.get(f"{path}/summaries", SummaryList).summaries
    return found if with_texts else [msgspec.structs.replace(each, text=None, versions=[]) for each in found]


def _search(client: AdminClient, options: argparse.Namespace) -> int:
    """The status is 1 if nothing is found, as that of `grep`."""
    identity = find_id(client, options.id)
    query: dict[str, str | int] = {"q": " ".join(options.query), "limit": options.limit}
    page = client.get(f"/conversations/{identity}/search", SearchPage, query)
    if options.json:
        _write(page)
    else:
        show_found(make_console(), page)
    return 0 if page.found else 1


def _compact(client: AdminClient, options: argparse.Namespace) -> int:
    identity = find_id(client, options.id)
    body = {"instructions": options.instructions} if options.instructions else {}
    begun = client.post(f"/conversations/{identity}/compact", CompactionBegun, body)
    if options.json:
        _write(begun)
    else:
        make_console().print(Text(f"{identity}: compaction begins {begun.begins}"), soft_wrap=True)
    return 0


def _delete(client: AdminClient, options: argparse.Namespace) -> int:
    identity = find_id(client, options.id)
    question = f"Delete everything that the gateway keeps of {identity}? Type yes to go on: "
    if not options.yes and ask_person(question).strip().lower() not in ("y", "yes"):
        raise AdminError("nothing was deleted")
    deleted = client.delete(f"/conversations/{identity}", Deletion)
    if options.json:
        _write(deleted)
    else:
        numbers = ", ".join(
            f"{name}: {number}" for name, number in msgspec.structs.asdict(deleted.deleted).items()
        )
        make_console().print(Text(f"{identity}: deleted; records: {numbers}"), soft_wrap=True)
    return 0


def _write(value: object) -> None:
    sys.stdout.write(render_json(value) + "\n")


_ACTIONS: Final[Mapping[str, Callable[[AdminClient, argparse.Namespace], int]]] = {
    "list": _list,
    "show": _show,
    "search": _search,
    "compact": _compact,
    "delete": _delete,
}


def show_found(console: Console, page: SearchPage) -> None:
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
