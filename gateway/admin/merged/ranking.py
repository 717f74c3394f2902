"""Which worker knows a conversation best, and one list of what several workers have seen.

A turn may go to any worker, so several of them may know one conversation. The one that answered its newest
turn knows most. Values in, values out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.activity.rows import Row
from gateway.admin.answers import ConversationList
from gateway.admin.conversation_list import find_place, make_cursor
from gateway.admin.merged.worker_client import Silent, WorkerAnswer, WorkerPage


@dataclass(frozen=True)
class Ranking:
    """knowing: pages of the workers that know the conversation, newest first; others: workers that do not.

    has_silent: a worker did not answer, and may know it.
    """

    knowing: Sequence[tuple[Path, WorkerPage]]
    others: Sequence[Path]
    has_silent: bool

    @property
    def sockets(self) -> list[Path]:
        """Every worker that answers, the best first."""
        return [*(socket for socket, _ in self.knowing), *self.others]


def rank(sockets: Sequence[Path], answers: Sequence[WorkerAnswer]) -> Ranking:
    """answers: of each worker, to the question for the conversation's own page."""
    pages = [
        (socket, answer)
        for socket, answer in zip(sockets, answers, strict=True)
        if isinstance(answer, WorkerPage)
    ]
    knowing = [(socket, page) for socket, page in pages if page.status == 200]
    return Ranking(
        knowing=sorted(knowing, key=lambda each: _read_time(each[1].parse()), reverse=True),
        others=[socket for socket, page in pages if page.status != 200],
        has_silent=any(isinstance(answer, Silent) for answer in answers),
    )


def put_bodies_first(ranking: Ranking) -> list[Path]:
    """The workers that know the conversation. The first holds its newest body, so it can compact now."""
    return [
        socket for socket, page in sorted(ranking.knowing, key=lambda each: not _has_body(each[1].parse()))
    ]


def merge_rows(rows: Iterable[Row]) -> list[Row]:
    """Each conversation once, as the worker shows it that saw it last; the newest first."""
    newest: dict[str, Row] = {}
    for row in rows:
        known = newest.get(row.id)
        if known is None or find_place(row) > find_place(known):
            newest[row.id] = row
    return sorted(newest.values(), key=find_place, reverse=True)


def merge_pages(pages: Sequence[ConversationList], limit: int) -> ConversationList:
    """The same page of the list of all workers. pages: of each worker, with as many rows at most.

    Where a worker has more rows than it shows, nothing older than the last of them is shown.
    """
    rows = merge_rows(row for page in pages for row in page.conversations)
    ends = [find_place(page.conversations[-1]) for page in pages if page.next and page.conversations]
    shown = [row for row in rows if not ends or find_place(row) >= max(ends)][:limit]
    has_more = bool(shown) and (bool(ends) or len(shown) < len(rows))
    return ConversationList(conversations=shown, next=make_cursor(shown[-1]) if has_more else None)


def _read_time(entry: object) -> str:
    """All workers write UTC in one form, so texts compare as times do."""
    return str(entry.get("last_seen", "")) if isinstance(entry, dict) else ""


def _has_body(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("body_in_memory") is True
