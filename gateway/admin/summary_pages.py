"""The summaries of a conversation: read, edited, restored."""

from typing import Final

from aiohttp import web

from gateway.activity.economics import fill
from gateway.activity.record import ConversationActivity, PivotNote, SummaryNote
from gateway.activity.rows import render_time
from gateway.admin.answers import SummaryList, SummaryRow, SummaryState, VersionRow
from gateway.admin.operations import EditBody, RestoreBody
from gateway.admin.routing import AdminRefusal, read_body
from gateway.admin.sources import PageSources, log_view
from gateway.compaction.edit import EditRefused
from gateway.core.compaction.request import CompactionTrigger, SummaryKind, find_reason
from gateway.core.history.pivot import Pivot
from gateway.store.interface import StoreError

_STATUSES: Final = {"outdated": 409, "not in use": 409, "busy": 409, "unknown version": 404, "flawed": 422}


async def list_summaries(sources: PageSources, request: web.Request) -> SummaryList:
    """Without their texts where those are not shown."""
    known = sources.find(request)
    shows_texts = sources.describe_texts(known).allowed
    rows = [await _describe(sources, known, note, shows_texts=shows_texts) for note in _list_notes(known)]
    if any(version.text is not None for row in rows for version in row.versions):
        log_view(request, known.id, "summaries")
    return SummaryList(id=known.id, summaries=rows)


async def edit_summary(sources: PageSources, request: web.Request) -> SummaryRow:
    return await _change(sources, request, EditBody)


async def restore_summary(sources: PageSources, request: web.Request) -> SummaryRow:
    return await _change(sources, request, RestoreBody)


async def _change(
    sources: PageSources, request: web.Request, kind: type[EditBody | RestoreBody]
) -> SummaryRow:
    """Raises AdminRefusal if nothing was changed."""
    known = sources.find_shown(request)
    body = await read_body(request, kind)
    turn, editor = sources.find_newest(known).turn, sources.find_serving().editor
    wanted = body.text if isinstance(body, EditBody) else body.version
    try:
        outcome = await editor.edit(turn, request.match_info["key"], wanted, body.based_on)
    except StoreError as error:
        raise AdminRefusal(503, f"not stored: {error}") from error
    if isinstance(outcome, EditRefused):
        raise AdminRefusal(_STATUSES[outcome.cause], outcome.reason)
    log_view(request, known.id, "summary")
    notes = {note.key: note for note in _list_notes(known)}
    pivot_kind: SummaryKind = "digest" if outcome.is_digest else "summary"
    note = notes.get(outcome.key) or _note(outcome, pivot_kind, "manual" if outcome.is_manual else "auto")
    return await _describe(sources, known, note, shows_texts=True)


async def _describe(
    sources: PageSources, known: ConversationActivity, note: SummaryNote, *, shows_texts: bool
) -> SummaryRow:
    pivot = await sources.state.pivots.load(known.owner, note.key)
    state = _find_state(known, note)
    newest, shown = pivot or note, pivot if shows_texts else None
    return fill(
        SummaryRow,
        note,
        reason=find_reason(note.reason),
        created=render_time(note.at_seconds),
        seconds=round(note.seconds, 3),
        tokens=newest.tokens,
        saved_tokens=pivot.saved_tokens if pivot is not None else note.pre_tokens - note.post_tokens,
        state=state,
        in_use=state == "in_use",
        version=pivot.version if pivot is not None else 1,
        text=shown.told.text if shown is not None else None,
        framing=(shown.framing or None) if shown is not None else None,
        recalled=(shown.recalled or None) if shown is not None else None,
        versions=_list_versions(pivot, shows_texts=shows_texts) if pivot is not None else [],
    )


def _find_state(known: ConversationActivity, note: SummaryNote) -> SummaryState:
    """A summary that was passed over by a later one is replaced, though no request was sent with it."""
    if known.pivot is not None and known.pivot.key == note.key:
        return "in_use"
    covered = known.pivot.covers if known.pivot is not None else 0
    return "prepared" if note.is_unused and note.covers > covered else "replaced"


def _list_notes(known: ConversationActivity) -> list[SummaryNote]:
    """The newest first, one of each summary. One in use that was made for another conversation, from which
    this one branched off, has no note of its own.
    """
    notes: dict[str, SummaryNote] = {}
    for note in reversed(known.summaries):
        notes.setdefault(note.key, note)
    if known.pivot is not None and known.pivot.key not in notes:
        return [_note(known.pivot, known.pivot.kind, "auto"), *notes.values()]
    return list(notes.values())


def _note(pivot: Pivot | PivotNote, kind: SummaryKind, trigger: CompactionTrigger) -> SummaryNote:
    return SummaryNote(
        key=pivot.key,
        covers=pivot.covers,
        at_seconds=pivot.created_seconds,
        kind=kind,
        trigger=trigger,
        reason="",
        pre_tokens=pivot.saved_tokens,
    )


def _list_versions(pivot: Pivot, *, shows_texts: bool) -> list[VersionRow]:
    """The one in use, and the original of one that a person has edited."""
    versions = [
        VersionRow(
            version=pivot.version,
            created=render_time(pivot.edited_seconds or pivot.created_seconds),
            edited=pivot.is_edited,
            text=pivot.told.text if shows_texts else None,
        )
    ]
    original = pivot.original
    if original is not None:
        created, text = render_time(pivot.created_seconds), original.text if shows_texts else None
        versions.append(VersionRow(version=original.version, created=created, edited=False, text=text))
    return versions
