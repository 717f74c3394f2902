"""The three tools that read originals: their arguments, and what they answer.

Everything is looked up under the tag of the caller's tenant. Knows nothing of the protocol.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from gateway.core.history.transcript import neutralize
from gateway.logs.fields import name_fields
from gateway.originals.beside_summary import render_pieces
from gateway.originals.index import Mention
from gateway.originals.search import (
    OriginalsSearch,
    OriginalText,
    Scope,
    SearchFailed,
    SearchImpossible,
)
from gateway.reporting.metrics import Metrics, SearchResult
from gateway.store.interface import StoreError
from gateway.store.keys import make_tag
from gateway.tenants import Tenant

log = logging.getLogger("gateway.mcp")

SEARCH: Final = "search_history"
READ: Final = "read_message"
LIST: Final = "list_files"

# Two thirds of the 60 s that MCP clients wait for a call.
_PATIENCE_SECONDS: Final = 40.0
_MAX_FILES_CHARS: Final = 20_000
_SHOWN_POSITIONS: Final = 5

_UNKNOWN: Final = (
    "Nothing is kept under this conversation id for this key. Compare the id with the one in the first line "
    "of the summary. Originals are kept from the first summary on, if the gateway's operator lets them be "
    "kept, for the time that is set, and only for the key with which the conversation was held."
)
_UNSEARCHABLE: Final = "Originals cannot be searched in this gateway."
_UNAVAILABLE: Final = "The originals cannot be read now. Try again later."
_SLOW: Final = "The originals could not be read in time. Try again later."
_FAILED: Final = "The gateway failed on this call."
_NO_FILES: Final = "No call of a tool in this part of the conversation names a file."

# Ids are digits and letters. Whatever a model puts around them is no part of them.
ConversationId = Annotated[str, Meta(pattern=r"^[0-9A-Za-z_.-]{1,64}$")]
Position = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class SearchArguments(msgspec.Struct, frozen=True):
    conversation: ConversationId
    query: Annotated[str, Meta(min_length=1, max_length=1_000)]


class ReadArguments(msgspec.Struct, frozen=True):
    """start: the first character to read."""

    conversation: ConversationId
    position: Position
    start: Position = 0


class ListArguments(msgspec.Struct, frozen=True):
    conversation: ConversationId


A = TypeVar("A", SearchArguments, ReadArguments, ListArguments)


class ToolAnswer(NamedTuple):
    """result: failed also for arguments that are wrong."""

    text: str
    result: SearchResult


class ToolFailed(Exception):
    """The text is for the model."""


# A tool's name and its arguments; the caller's tenant is known. Never raises.
CallTool = Callable[[str, Mapping[str, object]], Awaitable[ToolAnswer]]


class HistoryTools:
    def __init__(self, search: OriginalsSearch, metrics: Metrics) -> None:
        self._search = search
        self._metrics = metrics

    async def call(self, tenant: Tenant, name: str, arguments: Mapping[str, object]) -> ToolAnswer:
        """Never raises, except if it is cancelled. The log and the metrics get no argument but a valid id."""
        begun_seconds = time.monotonic()
        answer = await self._answer(make_tag(tenant.id), name, arguments)
        if name == SEARCH:
            self._metrics.count_search("mcp", answer.result)
        known, seconds = name if name in (SEARCH, READ, LIST) else "-", time.monotonic() - begun_seconds
        fields = name_fields(tool=known, tenant=tenant.display_name, result=answer.result)
        log.info(
            "call tool=%s tenant=%s result=%s seconds=%.3f",
            known,
            tenant.display_name,
            answer.result,
            seconds,
            extra=fields,
        )
        return answer

    async def _answer(self, tag: str, name: str, arguments: Mapping[str, object]) -> ToolAnswer:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return await self._choose(tag, name, arguments)
        except ToolFailed as error:
            return ToolAnswer(str(error), "failed")
        except TimeoutError:
            return ToolAnswer(_SLOW, "failed")
        except SearchImpossible:
            return ToolAnswer(_UNSEARCHABLE, "failed")
        except (SearchFailed, StoreError):
            return ToolAnswer(_UNAVAILABLE, "failed")
        except Exception as error:  # noqa: BLE001 - the edge: the library would show the text to the client
            log.error("a tool failed inside the gateway: %s", type(error).__name__)
            return ToolAnswer(_FAILED, "failed")

    async def _choose(self, tag: str, name: str, arguments: Mapping[str, object]) -> ToolAnswer:
        match name:
            case "search_history":
                return await self._search_history(tag, _read(arguments, SearchArguments))
            case "read_message":
                return await self._read_message(tag, _read(arguments, ReadArguments))
            case "list_files":
                return await self._list_files(tag, _read(arguments, ListArguments))
            case _:
                raise ToolFailed(f"There is no such tool. There are {SEARCH}, {READ} and {LIST}.")

    async def _search_history(self, tag: str, asked: SearchArguments) -> ToolAnswer:
        scopes = [Scope(asked.conversation)]
        pieces = await self._search.search(tag, scopes, _clean(asked.query).replace("\0", " "))
        if not pieces:
            await self._check_known(tag, asked.conversation)
        return ToolAnswer(_clean(render_pieces(pieces)), "found" if pieces else "nothing")

    async def _read_message(self, tag: str, asked: ReadArguments) -> ToolAnswer:
        scopes = [Scope(asked.conversation)]
        found = await self._search.read(tag, scopes, asked.position, start=asked.start)
        if found is None:
            await self._check_known(tag, asked.conversation)
            return ToolAnswer(f"No original of message {asked.position} is kept.", "nothing")
        return ToolAnswer(_clean(_render_message(found, asked.start)), "found")

    async def _list_files(self, tag: str, asked: ListArguments) -> ToolAnswer:
        files = await self._search.list_files(tag, [Scope(asked.conversation)])
        if not files:
            await self._check_known(tag, asked.conversation)
            return ToolAnswer(_NO_FILES, "nothing")
        return ToolAnswer(_clean(_render_files(files)), "found")

    async def _check_known(self, tag: str, conversation: str) -> None:
        """Raises ToolFailed if this tenant has no originals of this conversation: the same for an id that
        another tenant has, and for one that does not exist.
        """
        if not await self._search.has_originals(tag, conversation):
            raise ToolFailed(_UNKNOWN)


def _read(arguments: Mapping[str, object], kind: type[A]) -> A:
    """Raises ToolFailed. Its text holds no value of an argument. Models write numbers as texts, too."""
    conversation = arguments.get("conversation")
    if isinstance(conversation, str):
        arguments = {**arguments, "conversation": conversation.strip(" \t\r\n`'\"<>.,:;()[]")}
    try:
        return msgspec.convert(arguments, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ToolFailed(f"Wrong arguments: {error}") from error


def _clean(text: str) -> str:
    """Lone surrogates, which JSON may hold, cannot be written as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _render_message(found: OriginalText, start: int) -> str:
    end = min(start + len(found.text), found.total_chars)
    origin = ", ".join(filter(None, (found.role, found.tool, found.path)))
    head = f"[message {found.position}, {origin}; characters {start} to {end} of {found.total_chars}]"
    left = found.total_chars - end
    rest = f"\n[{left} characters follow: read on with start={end}]" if left > 0 and found.text else ""
    return f"{head}\n{neutralize(found.text)}{rest}"


def _render_files(files: Sequence[Mention]) -> str:
    lines, chars = list[str](), 0
    for file in files:
        shown = file.positions[-_SHOWN_POSITIONS:]
        times = "once" if file.mentions == 1 else f"{file.mentions} times"
        where = f"in {'message' if len(shown) == 1 else 'messages'} {', '.join(map(str, shown))}"
        line = f"{neutralize(' '.join(file.path.split()))} ({times}, {where})"
        chars += len(line)
        if chars > _MAX_FILES_CHARS:
            lines.append(f"[{len(files) - len(lines)} more files are left out]")
            break
        lines.append(line)
    return "\n".join(lines)
