"""What a conversation worked on, and its diffs. Also of one that an earlier process or another one served."""

import sys
from collections.abc import Iterable, Sequence
from typing import Final

from aiohttp import hdrs, web
from msgspec.structs import replace

from gateway.activity.record import ConversationActivity
from gateway.activity.rows import render_second
from gateway.admin.answers import (
    ConversationList,
    DiffPage,
    FileDiff,
    LastSummary,
    MessageTitle,
    SessionCommand,
    SessionPage,
    SessionTodo,
)
from gateway.admin.operations import MARKDOWN, DiffQuery, SessionQuery
from gateway.admin.routing import PRIVATE, Answer, read_query
from gateway.admin.session_markdown import render_markdown
from gateway.admin.sources import PageSources, log_view, unknown_conversation
from gateway.core.session.patches import read_created
from gateway.core.session.work import NOTHING_DONE, FileChange, SessionWork, list_touched_files
from gateway.sessions.record import StoredSession
from gateway.store.interface import StoreError
from gateway.store.keys import make_tag

_NOTHING: Final = "/dev/null"


async def show_session(sources: PageSources, request: web.Request) -> Answer:
    query = read_query(request, SessionQuery)
    known, session = await _load(sources, request)
    identity = request.match_info["id"]
    summary = await _find_summary(sources, known) if known is not None else None
    log_view(request, identity, "session")
    page = _make_page(identity, session, summary)
    accepted = request.headers.get(hdrs.ACCEPT, "").partition(",")[0].partition(";")[0].strip().lower()
    if query.format != "markdown" and not (query.format is None and accepted == MARKDOWN):
        return page
    return web.Response(text=render_markdown(page), content_type=MARKDOWN, headers=PRIVATE)


async def show_diff(sources: PageSources, request: web.Request) -> DiffPage:
    query = read_query(request, DiffQuery)
    _, session = await _load(sources, request)
    identity = request.match_info["id"]
    log_view(request, identity, "diff")
    if session is None:
        return DiffPage(id=identity, message=query.message, files=[], left_off=0)
    positions = _choose_positions(session.work, query.message)
    changes = await sources.sessions.load_changes(make_tag(session.owner), identity)
    return DiffPage(
        id=identity,
        message=query.message,
        files=list_file_diffs([each for each in changes if each.position in positions]),
        left_off=sum(position in positions for position in session.work.left_changes),
    )


async def add_titles(sources: PageSources, page: ConversationList) -> ConversationList:
    """The same page with the titles of sessions whose texts are shown."""
    found = [sources.activity.find(row.id) for row in page.conversations]
    titles = await load_titles(sources, [each for each in found if each is not None])
    rows = [replace(row, title=titles.get(row.id)) for row in page.conversations]
    return replace(page, conversations=rows)


async def load_titles(sources: PageSources, found: Iterable[ConversationActivity]) -> dict[str, str]:
    """By conversation, of those whose texts are shown and that have one."""
    wanted: dict[str, list[str]] = {}
    for conversation in found:
        if sources.describe_texts(conversation).allowed:
            wanted.setdefault(make_tag(conversation.owner), []).append(conversation.id)
    try:
        return await sources.sessions.load_titles(wanted)
    except StoreError:
        # A list is good without titles, too.
        return {}


async def _load(
    sources: PageSources, request: web.Request
) -> tuple[ConversationActivity | None, StoredSession | None]:
    """Raises AdminRefusal (403, 404)."""
    identity = request.match_info["id"]
    known = sources.activity.find(identity)
    sources.check_texts(known)
    tag = await sources.find_tag(identity)
    session = await sources.sessions.load(tag, identity) if tag is not None else None
    if known is None and session is None:
        raise unknown_conversation()
    return known, session


async def _find_summary(sources: PageSources, known: ConversationActivity) -> LastSummary | None:
    """The newest one that still has its text."""
    keys = [note.key for note in reversed(known.summaries)]
    if known.pivot is not None and known.pivot.key not in keys:
        # It was made for the conversation that this one branched off.
        keys.append(known.pivot.key)
    for key in keys:
        pivot = await sources.state.pivots.load(known.owner, key)
        if pivot is not None:
            return LastSummary(
                key=key,
                kind="digest" if pivot.is_digest else "summary",
                created=render_second(pivot.created_seconds),
                text=pivot.told.text,
            )
    return None


def _choose_positions(work: SessionWork, message: int | None) -> range:
    """Of the messages whose diffs belong to a message: its own, or if it is a user message those of all
    messages up to the next one of the user. None stands for the whole session.
    """
    if message is None:
        return range(sys.maxsize)
    asked = [position for position, _ in work.titles]
    if message not in asked:
        return range(message, message + 1)
    return range(message, next((position for position in asked if position > message), sys.maxsize))


def _make_page(identity: str, session: StoredSession | None, summary: LastSummary | None) -> SessionPage:
    """session: None if nothing of it is kept."""
    work = session.work if session is not None else NOTHING_DONE
    return SessionPage(
        id=identity,
        title=session.title or None if session is not None else None,
        title_from=session.title_from if session is not None else None,
        updated=render_second(session.updated_seconds) if session is not None else None,
        additions=sum(file.additions for file in work.files),
        deletions=sum(file.deletions for file in work.files),
        files=work.files,
        left_files=work.left_files,
        commands=[
            SessionCommand(message=each.position, command=each.command, exit_code=each.exit_code)
            for each in work.commands
        ],
        left_commands=work.left_commands,
        todos=[SessionTodo(text=each.text, in_progress=each.is_in_progress) for each in work.todos],
        messages=[MessageTitle(message=position, title=title) for position, title in work.titles],
        summary=summary,
    )


# Diffs, file by file


def list_file_diffs(changes: Sequence[FileChange]) -> list[FileDiff]:
    """In the order of the first changes. A file that was moved is one file, under its last name."""
    groups: dict[str, list[FileChange]] = {}
    for change in changes:
        moved = groups.pop(change.moved_from, None) if change.moved_from is not None else None
        groups[change.path] = [*groups.get(change.path, moved or []), change]
    return [_make_file_diff(group) for group in groups.values()]


def _make_file_diff(changes: Sequence[FileChange]) -> FileDiff:
    """changes: of one file, in order; at least one."""
    (touched,) = list_touched_files(changes)[-1:]
    first, last = changes[0], changes[-1]
    return FileDiff(
        file=touched.path,
        kind=touched.kind,
        moved_from=touched.moved_from,
        before="" if first.kind == "created" else None,
        after="" if last.kind == "deleted" else read_created(last),
        additions=touched.additions,
        deletions=touched.deletions,
        unknown=touched.unknown,
        messages=list(dict.fromkeys(change.position for change in changes)),
        diff=_make_header(first, last) + "".join(change.diff for change in changes),
    )


def _make_header(first: FileChange, last: FileChange) -> str:
    before = first.moved_from or first.path
    old = _NOTHING if first.kind == "created" else f"a/{before.lstrip('/')}"
    new = _NOTHING if last.kind == "deleted" else f"b/{last.path.lstrip('/')}"
    return f"--- {_on_one_line(old)}\n+++ {_on_one_line(new)}\n"


def _on_one_line(path: str) -> str:
    return "".join(each if each.isprintable() else "�" for each in path)
