"""Every operation of the admin API, declared once: its routes, its documentation, and who answers.

`pages` answers them in one process, `merged` for several workers, and `openapi` describes them. Paths are
given without their prefix: `/api/v1` is the versioned one, and `/api` stands for the newest version.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec

from gateway.admin.answers import (
    CompactionBegun,
    ConversationList,
    ConversationPage,
    Deletion,
    DiffPage,
    GatewayPage,
    LogPage,
    MessagesPage,
    OriginalList,
    RequestList,
    SearchPage,
    SessionForm,
    SessionPage,
    SummaryList,
    SummaryRow,
    TotalsPage,
)
from gateway.core.compaction.manual import LONGEST_INSTRUCTIONS_CHARS
from gateway.purge import PurgeCount

PREFIXES: Final = ("/api/v1", "/api")
# For `refold tenants purge`.
PURGE_PATH: Final = "/tenants/purge"
MOST_ROWS: Final = 500
# Of one page of originals; 1 MB.
MOST_ORIGINALS: Final = 10_000
_MOST_CHARS: Final = 256
_MOST_QUERY_CHARS: Final = 1_000
# Pieces of one search.
MOST_FOUND: Final = 50
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"
MARKDOWN: Final = "text/markdown"

HttpMethod = Literal["GET", "POST", "PUT", "DELETE"]
JSONObject = dict[str, Any]
# How several workers answer: by one list or sum of all, by the one that saw the conversation last, by
# whichever finds it in the store, by the one that holds the newest body, by any, or by their supervisor.
Reach = Literal["list", "totals", "newest", "stored", "body", "any", "supervisor"]
_Text = Annotated[str, msgspec.Meta(max_length=_MOST_CHARS)]


class ListQuery(msgspec.Struct, frozen=True):
    """q: a part of an id, a session label, a model, an upstream or a tenant, in any case."""

    tenant: _Text | None = None
    model: _Text | None = None
    purpose: _Text | None = None
    q: _Text = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)] = 100
    cursor: _Text | None = None


class OriginalsQuery(msgspec.Struct, frozen=True):
    """limit: of messages; one removal is listed in any case."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_ORIGINALS)] = MOST_ORIGINALS
    cursor: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | None = None


class SearchQuery(msgspec.Struct, frozen=True):
    """q: words, paths or identifiers. limit: of pieces."""

    q: Annotated[str, msgspec.Meta(min_length=1, max_length=_MOST_QUERY_CHARS)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_FOUND)] = 10


class CompactBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    instructions: Annotated[str, msgspec.Meta(max_length=LONGEST_INSTRUCTIONS_CHARS)] | None = None


class MessagesQuery(msgspec.Struct, frozen=True):
    """start: of all messages of the history, those of the leading block counted, too."""

    start: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_ROWS)] = 200


class SessionQuery(msgspec.Struct, frozen=True):
    """format: without it the header `Accept` decides."""

    format: SessionForm | None = None


class DiffQuery(msgspec.Struct, frozen=True):
    """message: the position of a message. Of a user message, with what was changed until the next one."""

    message: Annotated[int, msgspec.Meta(ge=0)] | None = None


class EditBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """based_on: the version that the person has edited. If it is another one by now, nothing is changed."""

    text: str
    based_on: int | None = None


class RestoreBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """based_on: the version in use when the person decided."""

    version: int
    based_on: int | None = None


class PurgeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tag: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """answer: the Struct of a JSON answer; None for another content, see `media`."""

    name: str
    method: HttpMethod = "GET"
    path: str
    summary: str
    answer: type[msgspec.Struct] | None = None
    media: str = JSON
    status: int = 200
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    # Statuses of its problems, beside those that follow from its path, query, body and reach.
    problems: tuple[int, ...] = ()
    reach: Reach = "newest"
    # Other forms of the answer, as texts.
    more_media: tuple[str, ...] = ()


_PATTERNS: Final = {"id": "[0-9a-f]{1,64}", "digest": "[0-9a-f]{64}", "key": "[0-9a-f]{1,64}"}
_ONE: Final = "/conversations/{id}"
_SUMMARY: Final = _ONE + "/summaries/{key}"

OPERATIONS: Final = (
    Operation(
        name="showGateway",
        path="/gateway",
        summary="The gateway itself: version, and where clients find it.",
        answer=GatewayPage,
        reach="supervisor",
    ),
    Operation(
        name="listConversations",
        path="/conversations",
        summary="Conversations, the newest first.",
        answer=ConversationList,
        query=ListQuery,
        reach="list",
    ),
    Operation(
        name="showTotals",
        path="/totals",
        summary="Sums over the conversations of each tenant, and of each model.",
        answer=TotalsPage,
        reach="totals",
    ),
    Operation(
        name="showConversation",
        path=_ONE,
        summary="One conversation, with its thresholds.",
        answer=ConversationPage,
    ),
    Operation(
        name="listRequests",
        path=_ONE + "/requests",
        summary="The tokens of its requests, the oldest first.",
        answer=RequestList,
    ),
    Operation(
        name="compact",
        method="POST",
        path=_ONE + "/compact",
        summary="Compacts now, or at the next request if the newest body is not in memory.",
        answer=CompactionBegun,
        status=202,
        body=CompactBody,
        problems=(409,),
        reach="body",
    ),
    Operation(
        name="exportConversation",
        path=_ONE + "/export",
        summary="Its newest body, its requests and its summaries as lines of JSON, for `refold replay`.",
        media=NDJSON,
        problems=(409,),
        reach="body",
    ),
    Operation(
        name="listLog",
        path=_ONE + "/log",
        summary="What was summarized, pruned or edited, or failed; the newest first.",
        answer=LogPage,
        reach="stored",
    ),
    Operation(
        name="listOriginals",
        path=_ONE + "/originals",
        summary="Which messages were removed from what is sent.",
        answer=OriginalList,
        query=OriginalsQuery,
        reach="stored",
    ),
    Operation(
        name="showOriginal",
        path=_ONE + "/originals/{digest}",
        summary="A removed message as it was received.",
        reach="stored",
    ),
    Operation(
        name="searchOriginals",
        path=_ONE + "/search",
        summary="Searches the messages that were removed from what is sent.",
        answer=SearchPage,
        query=SearchQuery,
        reach="stored",
    ),
    Operation(
        name="listMessages",
        path=_ONE + "/messages",
        summary="The newest request: the array as received beside the array as sent.",
        answer=MessagesPage,
        query=MessagesQuery,
        problems=(409,),
        reach="body",
    ),
    Operation(
        name="showSession",
        path=_ONE + "/summary",
        summary="What it worked on: title, files, commands, open to-dos, last summary; also as Markdown.",
        answer=SessionPage,
        query=SessionQuery,
        reach="stored",
        more_media=(MARKDOWN,),
    ),
    Operation(
        name="showDiff",
        path=_ONE + "/diff",
        summary="What it changed in each file, or what one message changed.",
        answer=DiffPage,
        query=DiffQuery,
        reach="stored",
    ),
    Operation(
        name="listSummaries",
        path=_ONE + "/summaries",
        summary="Its summaries and digests, the newest first, with their versions.",
        answer=SummaryList,
    ),
    Operation(
        name="editSummary",
        method="PUT",
        path=_SUMMARY,
        summary="Gives a summary another text, which is used from the next request on.",
        answer=SummaryRow,
        body=EditBody,
        problems=(409, 422),
        reach="body",
    ),
    Operation(
        name="restoreSummary",
        method="POST",
        path=_SUMMARY + "/restore",
        summary="Makes the text of an earlier version the newest one.",
        answer=SummaryRow,
        body=RestoreBody,
        problems=(409,),
        reach="body",
    ),
    Operation(
        name="deleteConversation",
        method="DELETE",
        path=_ONE,
        summary="Deletes a conversation with everything it left.",
        answer=Deletion,
        reach="stored",
    ),
    Operation(
        name="purgeTenant",
        method="POST",
        path=PURGE_PATH,
        summary="Deletes everything of a tenant; for `refold tenants purge`.",
        answer=PurgeCount,
        body=PurgeBody,
        reach="any",
    ),
    Operation(
        name="streamEvents",
        path="/events",
        summary="Events as they happen.",
        media=EVENTS,
        problems=(503,),
        reach="supervisor",
    ),
    Operation(
        name="showDocument",
        path="/openapi.json",
        summary="This document.",
        reach="supervisor",
    ),
)


def list_paths(operation: Operation) -> list[str]:
    """As routes, with every prefix. No other name of a conversation reaches the store."""
    path = operation.path
    for name, pattern in _PATTERNS.items():
        path = path.replace(f"{{{name}}}", f"{{{name}:{pattern}}}")
    return [prefix + path for prefix in PREFIXES]
